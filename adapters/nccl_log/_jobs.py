"""Which processes of a log are one job, which rank each is, and who is in which communicator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tracekit.adapters.nccl_log._splits import name_children
from tracekit.adapters.nccl_log._state import Communicator, Process

__all__ = ["Job", "Member", "find_jobs"]

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a communicator, and the process it lives in."""

    process: Process
    comm: Communicator


@dataclass(slots=True)
class Job:
    """Processes that talk with each other."""

    processes: list[Process]
    ranks: dict[int, int] = field(default_factory=dict)
    """The rank of each process, by its place in ``processes``; missing where nothing tells it."""
    groups: dict[str, list[Member]] = field(default_factory=dict)
    """The members of every communicator, by its job-wide name."""
    world: str | None = None
    """The communicator whose ranks are those of the job."""

    @property
    def first(self) -> int:
        """The order of its first line."""
        return min((p.first.order for p in self.processes if p.first), default=0)

    @property
    def last(self) -> int:
        """The order of its last line."""
        return max((p.last[3] for p in self.processes if p.last), default=0)

    @property
    def began_ns(self) -> int | None:
        """When it began, where lines tell."""
        times = [p.first.time_ns for p in self.processes if p.first and p.first.time_ns]
        return min(times, default=None)

    def numbered(self) -> Iterator[tuple[int | None, Process]]:
        """The processes with their ranks."""
        for place, process in enumerate(self.processes):
            yield self.ranks.get(place), process


def find_jobs(
    processes: Iterable[Process],
    known: Mapping[tuple[str, int], int] | None = None,
    one: bool = False,
) -> list[Job]:
    """Separate the jobs, the oldest first; ``known`` says which ranks processes are, by short host
    name and pid, and ``one`` that all are of one job."""
    listed = [process for process in processes if process.lines]
    for process in listed:
        name_children(process)
    jobs = [Job(listed)] if one and listed else _separate(listed)
    for job in jobs:
        job.groups = _groups(job.processes)
        _number(job, known or {})
    return sorted(jobs, key=_age)


def _age(job: Job) -> tuple[int, int]:
    return (job.began_ns or 0, job.first)


# Which processes belong together


def _separate(processes: list[Process]) -> list[Job]:
    parent = list(range(len(processes)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    by_hash: dict[str, int] = {}
    nameless: dict[int, list[dict[int, int]]] = {}
    silent: list[int] = []
    for place, process in sorted(enumerate(processes), key=lambda item: _order(item[1])):
        hashes = [comm.hash for comm in process.all_comms if comm.hash]
        for hash_ in hashes:
            parent[root(place)] = root(by_hash.setdefault(hash_, place))
        if hashes:
            continue
        first = next((c for c in process.all_comms if c.nranks is not None), None)
        if first is None or first.rank is None or first.nranks is None:
            silent.append(place)
            continue
        taken = nameless.setdefault(first.nranks, [])
        team = _team(taken, first.rank, process, processes)
        for rank in {c.rank for c in process.all_comms if c.nranks == first.nranks}:
            team[rank or 0] = place
        for other in team.values():
            parent[root(place)] = root(other)
    teams: dict[int, list[int]] = {}
    for place in range(len(processes)):
        if place not in silent:
            teams.setdefault(root(place), []).append(place)
    for place in silent:
        near = _nearest(processes[place], teams, processes)
        teams.setdefault(near if near is not None else -1, []).append(place)
    return [Job([processes[place] for place in sorted(places)]) for places in teams.values()]


def _order(process: Process) -> int:
    return process.first.order if process.first else _NEVER


def _team(
    taken: list[dict[int, int]], rank: int, process: Process, processes: list[Process]
) -> dict[int, int]:
    """The job that lacks this rank and whose processes are the most alike; a new one if none."""
    free = [team for team in taken if rank not in team]
    if not free:
        taken.append({})
        return taken[-1]

    def far(team: dict[int, int]) -> tuple[bool, int]:
        mates = [processes[place] for place in team.values()]
        same = [abs(mate.pid - process.pid) for mate in mates if mate.host == process.host]
        return not same, min(same, default=0)

    return min(free, key=far)


def _nearest(
    process: Process, teams: Mapping[int, list[int]], processes: list[Process]
) -> int | None:
    """The job of which a process is that tells of no communicator: by host and by place."""

    def far(item: tuple[int, list[int]]) -> tuple[bool, bool, int]:
        mates = [processes[place] for place in item[1]]
        hosts = {mate.host for mate in mates}
        files = {mate.first.file for mate in mates if mate.first}
        mine = process.first.file if process.first else ""
        near = min((abs(_order(mate) - _order(process)) for mate in mates), default=_NEVER)
        return process.host not in hosts, mine not in files, near

    found = min(((key, team) for key, team in teams.items() if key >= 0), key=far, default=None)
    return found[0] if found else None


# Communicators and ranks


def _groups(processes: Iterable[Process]) -> dict[str, list[Member]]:
    groups: dict[str, list[Member]] = {}
    for process in processes:
        hashes: dict[str, str] = {}
        for number, comm in enumerate(process.all_comms):
            if comm.rank is None or comm.nranks is None:
                continue
            name = comm.hash
            if name is None and comm.parent is not None:
                name = f"{hashes.get(comm.parent, comm.parent)}/{comm.split}"
            if name is None:
                mine = process.all_comms[:number]
                before = sum(1 for c in mine if c.nranks == comm.nranks and c.rank == comm.rank)
                name = f"{comm.nranks} ranks #{before}"
            hashes[comm.pointer] = name
            groups.setdefault(name, []).append(Member(process, comm))
    return groups


def _number(job: Job, known: Mapping[tuple[str, int], int]) -> None:
    """Ranks: what is known, else those of a communicator that spans the job, else the launcher's.

    Where nothing else tells them apart the largest communicator's count, as far as they differ.
    """
    told = {
        place: known[key]
        for place, process in enumerate(job.processes)
        if (key := (process.host.partition(".")[0], process.pid)) in known
    }
    if job.groups:
        job.world = max(job.groups, key=lambda name: (_size(job.groups[name]), -_first(job, name)))
    members = job.groups.get(job.world or "", [])
    of_world = {id(m.process): m.comm.rank for m in reversed(members) if m.comm.rank is not None}
    for member in members:  # several ranks of one process: the lowest
        rank = member.comm.rank
        if rank is not None:
            of_world[id(member.process)] = min(rank, of_world[id(member.process)])
    talking = sum(1 for process in job.processes if process.all_comms)
    spans = _size(members) >= talking
    outer = {
        place: process.outer_rank
        for place, process in enumerate(job.processes)
        if process.outer_rank is not None
    }
    distinct = len(set(outer.values())) == len(outer)
    for place, process in enumerate(job.processes):
        rank = told.get(place)
        if rank is None and spans:
            rank = of_world.get(id(process))
        if rank is None and distinct:
            rank = outer.get(place)
        if rank is None and not process.all_comms and process.host == "?" and process.pid > 0:
            rank = process.pid - 1  # pasted lines that only keep the device
        if rank is not None and rank not in job.ranks.values():
            job.ranks[place] = rank
    if not job.ranks and members:
        for place in range(len(job.processes)):
            job.ranks[place] = place


def _size(members: Iterable[Member]) -> int:
    return max((member.comm.nranks or 0 for member in members), default=0)


def _first(job: Job, name: str) -> int:
    return min((m.comm.seen.order for m in job.groups[name] if m.comm.seen), default=0)
