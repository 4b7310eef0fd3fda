"""Where each rank of a job stands in each of its groups, from its entries and its status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tracekit.adapters.flight_recorder._dump import Call, Dump
from tracekit.adapters.flight_recorder._jobs import Job
from tracekit.model import group_id

__all__ = ["Standing", "Team", "Teams", "standings"]


@dataclass(slots=True)
class Team:
    """A group of ranks as all dumps of a job tell of it."""

    id: str
    name: str
    description: str
    members: tuple[int, ...]
    """Global ranks in the order of the group."""
    told: bool
    """Whether a dump lists the members; else they are the ranks seen in it."""
    backend: str = ""
    messages: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it is known on one rank only, so that nobody can be compared with it."""
        return self.name.startswith("#") and self.name != "#0"


@dataclass(slots=True)
class Standing:
    """One rank in one group; None: not known."""

    enqueued: int | None
    started: int | None
    completed: int | None
    opened: list[Call] = field(default_factory=list)
    sites: dict[int, str] = field(default_factory=dict)
    dumps: int = 1
    """In how many dumps in a row, up to the last, it stands there."""


Key = tuple[str, tuple[int, ...]]


class Teams:
    """The groups of a job. Names are the same on all ranks; numbers are not."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.known: dict[Key, Team] = {}
        seen: dict[Key, set[int]] = {}
        for rank, dumps in job.dumps.items():
            for dump in dumps:
                for name, group in dump.groups.items():
                    key = self._key(dump, name)
                    team = self.known.get(key)
                    if team is None:
                        team = Team("", key[0], group[1], key[1], bool(key[1]))
                        self.known[key] = team
                    progress = dump.progress.get(name)
                    if progress is not None:
                        seen.setdefault(key, set()).add(rank)
                        team.messages |= progress.messages
                        team.backend = team.backend or progress.backend
        backends = {team.backend for team in self.known.values()} - {""}
        for key, team in self.known.items():
            if team.told and not team.backend and len(backends) == 1:
                team.backend = min(backends)
            if not team.members and not team.is_local:
                everyone = team.description == "default_pg" or team.name in ("0", "#0")
                team.members = tuple(range(job.world) if everyone else sorted(seen.get(key, ())))
        self._name()

    def _name(self) -> None:
        ordinals: dict[tuple[int, ...], int] = {}
        for key in sorted(self.known, key=lambda key: (not key[0].isdigit(), len(key[0]), key)):
            team = self.known[key]
            if team.is_local:
                team.id = team.name
                continue
            members = tuple(sorted(team.members))
            team.id = group_id(members, ordinals.get(members, 0))
            ordinals[members] = ordinals.get(members, 0) + 1

    def _key(self, dump: Dump, name: str) -> Key:
        members = dump.groups[name][2]
        if members:
            return name, members
        if name.startswith("#") and name != "#0":
            return f"{name} of rank {dump.rank}", ()  # the oldest dumps number groups by rank
        told = [m for m in self.job.groups.get(name, {}) if m and dump.rank in m]
        return name, told[0] if told else ()

    def of(self, dump: Dump, name: str) -> Team | None:
        """The group that a dump calls so."""
        team = self.known.get(self._key(dump, name)) if name in dump.groups else None
        return team if team is not None and (team.members or team.is_local) else None

    def __iter__(self) -> Iterator[Team]:
        return (team for team in self.known.values() if team.members)


def standings(job: Job, known: Teams) -> dict[int, dict[str, Standing]]:
    """By rank and id of group."""
    locals_ = _Locals(job)
    return {
        rank: _of_rank([_standing(dump, locals_.of(dump), known) for dump in dumps])
        for rank, dumps in sorted(job.dumps.items())
    }


class _Locals:
    """Names of groups by their numbers on a rank, also of one without entries: ranks that number
    as many groups alike have made groups of the same kinds in the same order."""

    def __init__(self, job: Job) -> None:
        self.kinds: dict[tuple[str, ...], dict[str, set[str]]] = {}
        for dump in (dump for dumps in job.dumps.values() for dump in dumps):
            alike = self.kinds.setdefault(_numbers(dump), {})
            for local, name in dump.names.items():
                kind = dump.groups[name][1] if name in dump.groups else ""
                alike.setdefault(local, set()).add(kind)

    def of(self, dump: Dump) -> dict[str, str]:
        found = {"0": "0"} if "0" in dump.groups else {}
        by_kind: dict[str, list[str]] = {}
        for name, group in dump.groups.items():
            by_kind.setdefault(group[1], []).append(name)
        alike = self.kinds.get(_numbers(dump), {})
        for local in dump.status:
            kinds = alike.get(local, set())
            names = by_kind.get(next(iter(kinds)), []) if len(kinds) == 1 else []
            if len(names) == 1 and next(iter(kinds)) not in ("", "undefined"):
                found[local] = names[0]
        return {**found, **dump.names}


def _numbers(dump: Dump) -> tuple[str, ...]:
    return tuple(sorted(dump.status))


def _standing(dump: Dump, names: dict[str, str], known: Teams) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for name, progress in dump.progress.items():
        team = known.of(dump, name)
        if team is not None:
            found[team.id] = Standing(
                progress.enqueued,
                progress.started,
                progress.completed,
                progress.opened,
                progress.sites,
            )
    for local, (enqueued, started, completed) in dump.status.items():
        team = known.of(dump, names.get(local, ""))
        # gloo counts messages to one of these numbers and not to the other.
        if team is None or team.messages or team.backend == "gloo":
            continue
        standing = found.setdefault(team.id, Standing(None, None, None))
        standing.enqueued = _larger(standing.enqueued, enqueued)
        standing.started = _larger(standing.started, started)
        standing.completed = _larger(standing.completed, completed)
    if dump.whole:  # nothing was overwritten: where it has no call, there was none
        for team in known:
            if dump.rank in team.members:
                standing = found.setdefault(team.id, Standing(None, None, None))
                if standing.enqueued is None:
                    standing.enqueued = 0
    return found


def _larger(one: int | None, other: int) -> int | None:
    if other < 0:
        return one
    return other if one is None else max(one, other)


def _of_rank(looks: Iterable[dict[str, Standing]]) -> dict[str, Standing]:
    """The last look, and for how many looks it has been so."""
    last: dict[str, Standing] = {}
    for look in looks:
        for name, standing in look.items():
            before = last.get(name)
            if before is not None and (before.enqueued, before.completed) == (
                standing.enqueued,
                standing.completed,
            ):
                standing.dumps = before.dumps + 1
        last = look
    return last
