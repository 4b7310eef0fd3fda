"""What logs of the communication library told of each process, read once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tracekit.analysis.basis.tables import Overview
from tracekit.dataset.engine import Engine

__all__ = ["Look", "Notice", "Peer", "Told", "read_told", "with_network"]

_NAMES = (
    "communicator", "nccl", "nccl_calls", "nccl_error", "nccl_jobs", "nccl_mismatch",
    "nccl_process", "nccl_ras", "nccl_tests", "nccl_bandwidth", "nccl_inspector_last",
    "nccl_warn", "network",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning of the library, or a line that means one."""

    text: str
    cause: str | None
    role: str
    count: int
    peer: str | None
    device: int | None
    source: str
    rank: int | None
    host: str
    closing: bool
    """Whether its process was ending its communicators itself."""


@dataclass(slots=True)
class Peer:
    """A process, as its log tells."""

    rank: int | None
    host: str
    process: dict[str, Any] = field(default_factory=dict)
    last: str = ""
    """Where its last line stands."""
    network: dict[str, Any] = field(default_factory=dict)
    network_source: str = ""
    version: str | None = None
    version_source: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    environment_source: str = ""
    comms: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How people call it."""
        return f"rank {self.rank}" if self.rank is not None else f"a process on {self.host}"


@dataclass(frozen=True, slots=True)
class Look:
    """One answer of the library's RAS, or an event that it told."""

    value: Mapping[str, Any]
    source: str
    time_ns: int | None

    @property
    def form(self) -> str:
        """text, json or event."""
        return str(self.value.get("form"))

    @property
    def communicators(self) -> list[Mapping[str, Any]]:
        """Those that it says something of."""
        return list(self.value.get("communicators") or ())

    @property
    def world(self) -> Mapping[str, Any] | None:
        """The communicator whose ranks are those of the job."""
        return next((comm for comm in self.communicators if comm.get("world")), None)

    def of_job(self, comm: Mapping[str, Any], ranks: Iterable[int]) -> list[int]:
        """The job's ranks of a communicator's, as far as they are known."""
        known = comm.get("ranks_of_job") or {}
        if comm.get("world"):
            return sorted(ranks)
        return sorted(int(known[str(rank)]) for rank in ranks if str(rank) in known)

    def gap_s(self, before: Look | None) -> float | None:
        """How long after another look it was, by what they tell or by the times of their files."""
        if before is None:
            return None
        if self.time_ns is not None and before.time_ns is not None:
            return (self.time_ns - before.time_ns) / 1e9
        one, other = self.value.get("written_ns"), before.value.get("written_ns")
        same_file = self.source.rpartition(":")[0] == before.source.rpartition(":")[0]
        return (one - other) / 1e9 if one and other and not same_file else None


@dataclass(slots=True)
class Told:
    """All of one attempt."""

    peers: list[Peer] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    mismatches: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    tests: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    bandwidths: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)
    """Collectives that the Inspector measured, and where one of them stands."""
    ends: list[dict[str, Any]] = field(default_factory=list)
    """The last numbers of each communicator in its records."""
    looks: list[Look] = field(default_factory=list)
    """Answers of RAS, the oldest first."""
    jobs: dict[str, Any] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        """The hosts of the processes."""
        return sorted({peer.host for peer in self.peers if peer.host and peer.host != "?"})

    @property
    def spans_hosts(self) -> bool:
        """Whether ranks of more than one host talk, as far as lines tell."""
        nodes = [comm.get("nodes") or 1 for peer in self.peers for comm in peer.comms]
        nets = any((peer.network.get("net") or {}).get("all") for peer in self.peers)
        return len(self.hosts) > 1 or max(nodes, default=1) > 1 or nets

    def rank_at(self, address: str, pid: int) -> int | None:
        """The rank of a process by its host's name or address and its pid, where a log tells."""
        return next(
            (
                peer.rank for peer in self.peers
                if peer.process.get("pid") == pid
                and address in (peer.host, peer.network.get("address"))
            ),
            None,
        )  # fmt: skip

    def ranks(self, peers: Iterable[Peer]) -> tuple[int, ...]:
        """The ranks of processes, as far as they are known."""
        return tuple(sorted({peer.rank for peer in peers if peer.rank is not None}))


def read_told(engine: Engine, attempt: int) -> Told:
    """Read what logs told of an attempt; what has another shape than expected is passed over."""
    names = ", ".join(f"'{name}'" for name in (*_NAMES, "environment"))
    rows = engine.sql(
        "SELECT rank, host, name, value, time_ns, source FROM facts"
        f" WHERE attempt = {attempt} AND name IN ({names})"
    ).to_pylist()
    told = Told()
    peers: dict[tuple[int | None, str, int], Peer] = {}
    values = []
    for row in rows:
        try:
            value = json.loads(row["value"])
        except ValueError:
            continue
        if isinstance(value, dict):
            values.append((row, value))
    for row, value in values:
        if row["name"] == "nccl_process":
            host = str(value.get("host") or row["host"] or "")
            peer = Peer(row["rank"], host, value, row["source"] or "")
            peers[row["rank"], host, len(peers)] = peer
    told.peers = sorted(peers.values(), key=lambda p: (p.rank is None, p.rank or 0, p.host))
    by_rank = {peer.rank: peer for peer in reversed(told.peers) if peer.rank is not None}
    by_host = {peer.host: peer for peer in reversed(told.peers) if peer.rank is None}
    for row, value in values:
        known = by_rank.get(row["rank"]) if row["rank"] is not None else by_host.get(row["host"])
        _take(told, known, row, value)
    told.looks.sort(key=lambda look: int(look.value.get("look") or 0))
    return told


def _take(told: Told, peer: Peer | None, row: Mapping[str, Any], value: dict[str, Any]) -> None:
    name, source = row["name"], row["source"] or ""
    if name in ("nccl_error", "nccl_warn"):
        told.notices.append(_notice(peer, row, value))
    elif name == "nccl_mismatch":
        told.mismatches.append((value, source))
    elif name == "nccl_tests":
        told.tests.append((value, source))
    elif name == "nccl_bandwidth":
        told.bandwidths.append((value, source))
    elif name == "nccl_inspector_last":
        told.ends.append(value)
    elif name == "nccl_ras":
        told.looks.append(Look(value, source, row["time_ns"]))
    elif name == "nccl_jobs":
        told.jobs = value
    elif peer is None:
        return
    elif name == "network":
        peer.network, peer.network_source = value, source
    elif name == "nccl":
        peer.version, peer.version_source = str(value.get("version")), source
    elif name == "environment" and source:  # our own record of it has no place in a file
        peer.environment = {k: str(v) for k, v in value.items() if k.startswith("NCCL_")}
        peer.environment_source = source
    elif name == "communicator":
        peer.comms.append({**value, "source": source})
    elif name == "nccl_calls":
        peer.calls.append({**value, "source": source})


def _notice(peer: Peer | None, row: Mapping[str, Any], value: Mapping[str, Any]) -> Notice:
    return Notice(
        str(value.get("text") or ""),
        value.get("class"),
        str(value.get("role") or "unknown"),
        int(value.get("count") or 1),
        value.get("peer"),
        value.get("device"),
        row["source"] or "",
        row["rank"],
        str(row["host"] or ""),
        bool(peer and peer.process.get("closing")),
    )


def with_network(engine: Engine, seen: Overview | None) -> Overview | None:
    """The overview of a run in which processes are known by the library's log alone; beside steps
    these do not count, as their journals are missing all the same."""
    if seen is not None and seen.first_step is not None:
        return seen
    rows = engine.sql(
        "SELECT attempt, run_id, rank, time_ns FROM facts"
        " WHERE name IN ('nccl_process', 'nccl_tests', 'nccl_ras', 'nccl_inspector')"
    ).to_pylist()
    if not rows:
        return seen
    attempt = max(row["attempt"] for row in rows) if seen is None else seen.attempt
    times: dict[int, int] = dict(seen.last_ns) if seen is not None else {}
    for row in rows:
        if row["attempt"] == attempt and row["rank"] is not None:
            times[row["rank"]] = max(times.get(row["rank"], 0), row["time_ns"] or 0)
    if seen is not None:
        return replace(seen, ranks=tuple(sorted({*seen.ranks, *times})), last_ns=times)
    first = min((row["time_ns"] for row in rows if row["time_ns"]), default=0)
    times = times or dict.fromkeys(range(_world(engine, attempt)), first)
    attempts = len({row["attempt"] for row in rows})
    return Overview(
        attempt, attempts, rows[0]["run_id"], tuple(sorted(times)), first, times or {0: first},
        0, 0, 0, None, None, 0, 0, (),
    )  # fmt: skip


def _world(engine: Engine, attempt: int) -> int:
    """How many ranks RAS knows of; it asks all of them, so that none is missing from its answers
    unsaid."""
    rows = engine.sql(
        f"SELECT value FROM facts WHERE attempt = {attempt} AND name = 'nccl_ras_world'"
    ).to_pylist()
    sizes = [json.loads(row["value"]).get("size") for row in rows]
    return max((size for size in sizes if isinstance(size, int)), default=0)
