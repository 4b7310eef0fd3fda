"""The same collective on all ranks, side by side: of many the same sample is kept of every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tracekit.adapters.nccl_inspector._records import Header, Record, operations

__all__ = ["Group", "Seen", "Sums"]

_KEPT = 150_000
_MULTIPLIER = 0x9E3779B1


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank's part of a collective."""

    took_us: float
    begin_us: int | None
    nbytes: int
    line: int


@dataclass(slots=True)
class Group:
    """A communicator."""

    id: str
    size: int
    nodes: int | None = None
    name: str | None = None
    members: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Host and pid of each rank whose file is there."""
    files: dict[int, str] = field(default_factory=dict)
    last: dict[str, dict[int, int]] = field(default_factory=dict)
    """The highest number of each operation, by rank."""
    calls: dict[str, int] = field(default_factory=dict)
    """How many records of each operation, of all ranks."""
    kept: dict[tuple[str, int], dict[int, Seen]] = field(default_factory=dict)


@dataclass(slots=True)
class Sums:
    """All communicators; memory is bounded by a sample of the numbers, the same of every rank."""

    groups: dict[str, Group] = field(default_factory=dict)
    _mask: int = 0
    _entries: int = 0

    def add(self, record: Record, file: str) -> None:
        """Take a collective of one rank."""
        header = record.header
        group = self._group(header)
        group.members[header.rank] = header.host, header.pid
        group.files[header.rank] = file
        last = group.last.setdefault(record.op, {})
        last[header.rank] = max(record.number, last.get(header.rank, 0))
        group.calls[record.op] = group.calls.get(record.op, 0) + 1
        if (record.number * _MULTIPLIER >> 16) & self._mask:
            return
        ranks = group.kept.setdefault((record.op, record.number), {})
        self._entries += header.rank not in ranks
        ranks[header.rank] = Seen(record.took_us, record.begin_us, record.nbytes, record.line)
        if self._entries > _KEPT:
            self._thin()

    def _group(self, header: Header) -> Group:
        known = self.groups.get(header.comm)
        if known is None:
            known = self.groups[header.comm] = Group(header.comm, header.size)
        known.nodes, known.name = header.nodes or known.nodes, header.name or known.name
        return known

    def _thin(self) -> None:
        """Keep half of the numbers, the same half of every rank."""
        self._mask = self._mask << 1 | 1
        self._entries = 0
        for group in self.groups.values():
            group.kept = {
                key: ranks for key, ranks in group.kept.items()
                if not (key[1] * _MULTIPLIER >> 16) & self._mask
            }  # fmt: skip
            self._entries += sum(len(ranks) for ranks in group.kept.values())

    def ranks(self) -> dict[tuple[str, int], int]:
        """The job's rank of each process: its rank in the largest communicator."""
        largest = max(self.groups.values(), key=lambda group: group.size, default=None)
        if largest is None:
            return {}
        found = {process: rank for rank, process in largest.members.items()}
        return found if len(found) == len(largest.members) else {}

    def tables(self, ranks: dict[tuple[str, int], int]) -> Iterator[tuple[Group, dict[str, Any]]]:
        """Each operation of each communicator and size, side by side over its ranks."""
        for group in self.groups.values():
            rows: dict[tuple[str, int], list[dict[int, Seen]]] = {}
            for (op, _), seen in group.kept.items():
                if len({one.nbytes for one in seen.values()}) == 1:
                    nbytes = next(iter(seen.values())).nbytes
                    rows.setdefault((op, nbytes), []).append(seen)
            for (op, nbytes), calls in rows.items():
                yield group, _row(group, op, nbytes, calls, ranks)


def _row(
    group: Group, op: str, nbytes: int, calls: list[dict[int, Seen]],
    ranks: dict[tuple[str, int], int],
) -> dict[str, Any]:  # fmt: skip
    about = operations()["operations"].get(op, {"op": op.lower(), "size": "1", "bus": "1"})
    n = group.size
    total = nbytes * (n if about["size"] == "ranks" else 1)
    factor = {"2(n-1)/n": 2 * (n - 1) / n, "(n-1)/n": (n - 1) / n}.get(about["bus"], 1.0)
    whole = [seen for seen in calls if len(seen) == n]
    took = median(one.took_us for seen in calls for one in seen.values())
    transfer = None
    if whole and about.get("all"):  # who comes last waits for nobody
        transfer = median(min(one.took_us for one in seen.values()) for seen in whole)
    job = {rank: ranks.get(process) for rank, process in group.members.items()}
    value: dict[str, Any] = {
        "group": group.id, "name": group.name, "size": n, "nodes": group.nodes, "op": about["op"],
        "bytes": total, "calls": len(calls), "whole_calls": len(whole),
        "ranks": sorted(rank for rank in job.values() if rank is not None),
        "hosts": sorted({host for host, _ in group.members.values()})[:64],
        "time_us": took,
        "algbw_with_wait_gbs": total / took / 1e3,
        "busbw_with_wait_gbs": total / took / 1e3 * factor,
        "transfer_us": transfer,
        "algbw_gbs": total / transfer / 1e3 if transfer else None,
        "busbw_gbs": total / transfer / 1e3 * factor if transfer else None,
    }  # fmt: skip
    if about.get("all") and n > 1 and whole:
        value["shortest"] = _shortest(group, whole, job)
    return value


def _shortest(
    group: Group, calls: list[dict[int, Seen]], job: dict[int, int | None]
) -> dict[str, Any]:
    """The rank whose part is the shortest in most calls: the others' parts are the wait for it."""
    counts: dict[int, int] = {}
    waits: dict[int, list[float]] = {}
    begins: dict[int, list[float]] = {}
    for seen in calls:
        rank = min(seen, key=lambda r: seen[r].took_us)
        others = [one for r, one in seen.items() if r != rank]
        counts[rank] = counts.get(rank, 0) + 1
        usual = median(one.took_us for one in others)
        waits.setdefault(rank, []).append(usual - seen[rank].took_us)
        began = [one.begin_us for one in others if one.begin_us is not None]
        own = seen[rank].begin_us
        if own is not None and len(began) == len(others):
            begins.setdefault(rank, []).append(own - median(began))
    rank = max(counts, key=lambda r: (counts[r], sum(waits[r])))
    one_host = len({host for host, _ in group.members.values()}) == 1
    took = median(seen[rank].took_us for seen in calls)
    return {
        "rank": job.get(rank), "rank_of_group": rank, "in": counts[rank], "of": len(calls),
        "time_us": took, "others_time_us": median(
            median(one.took_us for r, one in seen.items() if r != rank) for seen in calls
        ),
        "imposed_us": median(waits[rank]),
        "begins_later_us": median(begins[rank]) if one_host and begins.get(rank) else None,
        "host": group.members[rank][0], "pid": group.members[rank][1],
        "source": f"{group.files[rank]}:{calls[-1][rank].line}",
    }  # fmt: skip
