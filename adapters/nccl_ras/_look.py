"""One answer of RAS: which communicators there are, who is missing, whose counts differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tracekit.adapters.nccl_ras._table import table

__all__ = ["Comm", "Look", "Process", "Reported", "State"]

_LISTED = 256
"""Ranks and processes that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the job, and which rank it is there, where that is known."""

    host: str
    pid: int
    gpus: tuple[int, ...] = ()
    rank: int | None = None
    """Its rank in the communicator it is listed for."""

    @property
    def key(self) -> tuple[str, int]:
        """What it is known by in all of an answer."""
        return self.host, self.pid

    def told(self) -> dict[str, Any]:
        """As a plain value."""
        return {"rank": self.rank, "host": self.host, "pid": self.pid, "gpus": list(self.gpus)}


@dataclass(slots=True)
class State:
    """Ranks of a communicator that agree: on a count, or on a status."""

    value: int | str
    count: int
    ranks: list[int] = field(default_factory=list)
    """Those that are listed; all of them, or none."""

    def told(self) -> dict[str, Any]:
        """As a plain value."""
        return {"value": self.value, "count": self.count, "ranks": self.ranks[:_LISTED]}


@dataclass(slots=True)
class Reported:
    """An error that ranks reported."""

    error: str
    phase: str
    """initialization or asynchronous."""
    count: int
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Comm:
    """One communicator."""

    hash: str
    size: int | None = None
    name: str | None = None
    """What the report calls it, as #0-0."""
    status: list[State] = field(default_factory=list)
    counts: dict[str, list[State]] = field(default_factory=dict)
    """By operation, for those in which ranks differ; of JSON for all that were launched."""
    missing: int = 0
    """Ranks that gave no answer."""
    missing_ranks: list[int] = field(default_factory=list)
    reported: list[Reported] = field(default_factory=list)
    members: dict[int, Process] = field(default_factory=dict)
    """The process of each rank that is listed."""

    def told(self) -> dict[str, Any]:
        """As a plain value: of the members those that something is said of."""
        named = {*self.missing_ranks}
        groups = [*self.counts.values(), self.status]
        for states in groups:
            for state in states:
                if len(states) > 1 and len(state.ranks) <= _LISTED:
                    named.update(state.ranks)
        named.update(rank for one in self.reported for rank in one.ranks)
        return {
            "hash": self.hash,
            "name": self.name,
            "size": self.size,
            "missing": self.missing,
            "missing_ranks": sorted(self.missing_ranks)[:_LISTED],
            "status": [state.told() for state in self.status],
            "counts": {
                op: [one.told() for one in states[:_LISTED]]
                for op, states in self.counts.items()
            },
            "reported": [
                {"error": one.error, "phase": one.phase, "count": one.count,
                 "role": table()["roles"].get(one.error, "effect"),
                 "ranks": one.ranks[:_LISTED]}
                for one in self.reported
            ],
            "members": [
                self.members[rank].told() for rank in sorted(named)[:_LISTED]
                if rank in self.members
            ],
        }  # fmt: skip


@dataclass(slots=True)
class Look:
    """One answer, or one event that RAS told while it was watched."""

    file: str
    line: int
    form: str
    """text, json or event."""
    time_ns: int | None = None
    version: str | None = None
    nodes: int | None = None
    processes: int | None = None
    gpus: int | None = None
    dead: list[Process] = field(default_factory=list)
    dead_count: int = 0
    silent: list[Process] = field(default_factory=list)
    silent_count: int = 0
    timeouts: int = 0
    comms: list[Comm] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    """The rows of a report's table: communicators that are alike."""
    written_ns: int | None = None
    """When its file was written last."""
    running: int = 0
    """Communicators in use, as far as the answer says."""
    whole: bool = False
    """Whether it came to its end."""

    @property
    def source(self) -> str:
        """Where it stands."""
        return f"{self.file}:{self.line}"

    def comm(self, hash_: str) -> Comm:
        """The communicator of this hash, made when new."""
        for known in self.comms:
            if known.hash == hash_:
                return known
        self.comms.append(Comm(hash_))
        return self.comms[-1]

    @property
    def world(self) -> Comm | None:
        """The communicator that has all GPUs of the job, whose ranks are those of the job."""
        sized = [comm for comm in self.comms if comm.size]
        largest = max(sized, key=lambda comm: comm.size or 0, default=None)
        return largest if largest is not None and largest.size == self.gpus else None

    def told(self, ranks: dict[tuple[str, int], tuple[int, ...]]) -> dict[str, Any]:
        """As a plain value; ``ranks`` are those of the job by host and pid."""
        world = self.world
        return {
            "form": self.form,
            "version": self.version,
            "nodes": self.nodes,
            "processes": self.processes,
            "gpus": self.gpus,
            "running": self.running,
            "groups": self.groups[:_LISTED],
            "written_ns": self.written_ns,
            "timeouts": self.timeouts,
            "dead": _processes(self.dead, ranks),
            "dead_count": self.dead_count,
            "silent": _processes(self.silent, ranks),
            "silent_count": self.silent_count,
            "communicators": [
                {
                    **comm.told(),
                    "world": comm is world,
                    "ranks_of_job": _ranks_of_job(comm, comm is world, ranks),
                }
                for comm in self.comms
            ],
            "whole": self.whole,
        }


def _processes(
    listed: Iterable[Process], ranks: dict[tuple[str, int], tuple[int, ...]]
) -> list[dict[str, Any]]:
    return [
        {**process.told(), "rank": None, "ranks": list(ranks.get(process.key, ()))}
        for process in [*listed][:_LISTED]
    ]


def _ranks_of_job(
    comm: Comm, is_world: bool, ranks: dict[tuple[str, int], tuple[int, ...]]
) -> dict[str, int]:
    """The job's rank of each listed member; of processes with several GPUs only in the world."""

    def pairs() -> Iterator[tuple[str, int]]:
        for rank, process in comm.members.items():
            known = ranks.get(process.key, ())
            if is_world:
                yield str(rank), rank
            elif len(known) == 1:
                yield str(rank), known[0]

    return dict(pairs())
