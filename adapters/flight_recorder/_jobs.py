"""Whose dumps these are: the rank of each, jobs that lie in one folder, two dumps of one rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.adapters.flight_recorder._dump import Dump
from tracekit.adapters.flight_recorder._fields import Group

__all__ = ["Job", "rank_of", "separate"]

_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_DIGITS = re.compile(r"(\d{1,7})\D*$")
_ENDINGS = re.compile(r"(\.(json|pkl|pickle|pt|bin|dump|txt))+$", re.IGNORECASE)
_A_DAY = 86_400 * 10**9


def rank_of(dump: Dump) -> int | None:
    """The rank of a dump, from the groups it is in or from its file's name; None if neither can.

    A rank is in all of its groups. Where more than one rank is, the name decides among them.
    """
    members = [set(group[2]) for group in dump.groups.values() if group[2]]
    possible = set.intersection(*members) if members else set()
    if len(possible) == 1:
        return possible.pop()
    named = _named(dump.path)[0]
    if possible and named is not None and named not in possible:
        return None
    return named


def _named(path: Path) -> tuple[int | None, str]:
    """The rank in a file's name, and what stands before it."""
    stem = _ENDINGS.sub("", path.name)
    found = list(_RANK.finditer(stem))
    match = found[-1] if found else _LAST_DIGITS.search(stem)
    return (int(match[1]), stem[: match.start(1)]) if match else (None, stem)


@dataclass(slots=True)
class Job:
    """Dumps that can be of one run of one job."""

    dumps: dict[int, list[Dump]] = field(default_factory=dict)
    """By rank, the oldest first."""
    groups: dict[str, dict[tuple[int, ...], Group]] = field(default_factory=dict)
    """By name and members: a name can stand for several groups that have no member in common."""
    places: Counter[tuple[Path, str]] = field(default_factory=Counter)
    newest_ns: int | None = None
    least_world: int = 0
    """How many ranks it has at least, as something else than its dumps tells."""

    @property
    def files(self) -> int:
        """How many dumps there are."""
        return sum(map(len, self.dumps.values()))

    @property
    def world(self) -> int:
        """How many ranks the job has, as far as is told."""
        told = [max(members) for named in self.groups.values() for members in named if members]
        return max(self.least_world, max([*told, *self.dumps], default=-1) + 1)

    def last(self, rank: int) -> Dump:
        """The newest dump of a rank."""
        return self.dumps[rank][-1]

    def fits(self, dump: Dump) -> bool:
        """Whether nothing speaks against a dump being of this job."""
        for name, group in dump.groups.items():
            known = self.groups.get(name, {})
            if not group[2] or group[2] in known:
                continue
            if any(_overlap(members, group, dump.rank) for members in known):
                return False
        if dump.newest_ns and self.newest_ns and abs(dump.newest_ns - self.newest_ns) > _A_DAY:
            return False
        return dump.rank not in self.dumps or _of_one_process(self.dumps[dump.rank][-1], dump)

    def add(self, dump: Dump) -> None:
        """Take a dump in."""
        self.dumps.setdefault(dump.rank, []).append(dump)
        self.dumps[dump.rank].sort(key=_age)
        for name, group in dump.groups.items():
            self.groups.setdefault(name, {}).setdefault(group[2], group)
        self.places[place_of(dump)] += 1
        if dump.newest_ns is not None:
            self.newest_ns = max(dump.newest_ns, self.newest_ns or 0)


def _overlap(members: tuple[int, ...], group: Group, rank: int) -> bool:
    """Whether two groups of one name cannot be of one job."""
    return bool(members) and (rank in members or group[1] == "default_pg")


def place_of(dump: Dump) -> tuple[Path, str]:
    """The folder of a dump and the beginning of its name."""
    return dump.path.parent, _named(dump.path)[1]


def _age(dump: Dump) -> tuple[int, int, str]:
    return dump.newest_ns or 0, dump.written_ns or 0, str(dump.path)


def _of_one_process(one: Dump, other: Dump) -> bool:
    """Whether one process wrote both: they share calls, or threads where one came after all of
    the other's calls."""
    if not one.entries or not other.entries:
        return bool(one.groups) and one.groups == other.groups and bool(one.status)
    for name, progress in one.progress.items():
        theirs = other.progress.get(name)
        if theirs is None:
            continue
        known = set(zip(progress.last[0::3], progress.last[2::3], strict=True))
        if not known.isdisjoint(zip(theirs.last[0::3], theirs.last[2::3], strict=True)):
            return True
    calls = {(c.group, c.seq, c.created_ns) for p in one.progress.values() for c in p.opened}
    if any(
        (c.group, c.seq, c.created_ns) in calls for p in other.progress.values() for c in p.opened
    ):
        return True
    return one.threads == other.threads and one.threads != {"None"}


def separate(dumps: Iterable[Dump]) -> list[Job]:
    """Sort dumps into jobs, the one with most ranks first, of equal ones the newest."""
    jobs: list[Job] = []
    for dump in dumps:
        fitting = [job for job in jobs if job.fits(dump)]
        if fitting:
            best = max(fitting, key=lambda job: _nearness(job, dump))
        else:
            best = Job()
            jobs.append(best)
        best.add(dump)
    for job in jobs:
        _find_hosts(job)
    return sorted(jobs, key=lambda job: (-len(job.dumps), -(job.newest_ns or 0)))


def _nearness(job: Job, dump: Dump) -> tuple[bool, bool, int]:
    place = place_of(dump)
    shared = sum(
        1
        for name, group in dump.groups.items()
        if group[2] and group[2] in job.groups.get(name, {})
    )
    return place in job.places, any(place[0] == folder for folder, _ in job.places), shared


def _find_hosts(job: Job) -> None:
    """The word before the rank is a host's name where it differs among the files."""
    before = {place[1] for place in job.places}
    if len(before) < 2:
        return
    words = [re.split(r"[_.]", text.rstrip("_.-")) for text in before]
    common = 0
    while all(len(word) > common + 1 for word in words) and len({w[common] for w in words}) == 1:
        common += 1
    hosts = {
        id(dump): "_".join(re.split(r"[_.]", place_of(dump)[1].rstrip("_.-"))[common:])
        for dumps in job.dumps.values()
        for dump in dumps
    }
    if all(len({hosts[id(dump)] for dump in dumps}) == 1 for dumps in job.dumps.values()):
        for dumps in job.dumps.values():
            for dump in dumps:
                dump.host = hosts[id(dump)]
