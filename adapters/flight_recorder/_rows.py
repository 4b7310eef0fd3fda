"""A job's dumps become rows: what each rank had not completed, where it stood, what disagrees."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tracekit.adapters.flight_recorder._dump import Call, Dump, Signature
from tracekit.adapters.flight_recorder._jobs import Job
from tracekit.adapters.flight_recorder._names import bytes_of
from tracekit.adapters.flight_recorder._standing import Standing, Team, Teams, standings
from tracekit.dataset.facts import FactRow
from tracekit.dataset.schema import SPANS

__all__ = ["LANE", "Rows", "rows_of"]

LANE = "group:flight_recorder"
"""The lane of all spans from dumps: what is open there may go on beside the rank's work."""


@dataclass(slots=True)
class Rows:
    """Rows of both tables."""

    run_id: str
    attempt: int
    columns: dict[str, list[Any]] = field(default_factory=lambda: {n: [] for n in SPANS.names})
    facts: list[FactRow] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)

    def span(self, rank: int, kind: str, name: str, start: int, end: int, **more: Any) -> None:
        """Add a span."""
        id_ = self.ids[rank] = self.ids.get(rank, 0) + 1
        row = {
            "run_id": self.run_id, "attempt": self.attempt, "rank": rank, "kind": kind,
            "name": name, "lane": LANE, "clock": "host", "span_id": id_, "start_ns": start,
            "duration_ns": max(0, end - start), "is_open": False, **more,
        }  # fmt: skip
        for column, values in self.columns.items():
            values.append(row.get(column))

    def fact(self, dump: Dump | None, name: str, value: Any) -> None:
        """Add a fact: what a dump says of its rank, or of all where there is none."""
        self.facts.append(
            FactRow(
                self.run_id, self.attempt, dump.rank if dump else None, name, value,
                host=(dump.host or None) if dump else None,
                time_ns=(last_instant(dump) or None) if dump else None,
                source=f"{dump.path}:1" if dump else None,
            )
        )  # fmt: skip

    def spans(self) -> pa.Table:
        """The spans as a table."""
        arrays = [pa.array(self.columns[column.name], column.type) for column in SPANS]
        return pa.Table.from_arrays(arrays, schema=SPANS)


def last_instant(dump: Dump) -> int:
    """The last instant that a dump knows of: when it was written, else its newest call."""
    return dump.written_ns or dump.newest_ns or 0


def rows_of(job: Job, signatures: list[Signature], run_id: str, attempt: int) -> Rows:
    """The rows of a job, of the last dump of each rank."""
    rows = Rows(run_id, attempt)
    known = Teams(job)
    where = standings(job, known)
    for each in known:
        rows.fact(None, "group", _group(each))
    disagreements = _disagreements(job, known, signatures)
    for rank in sorted(job.dumps):
        dump = job.last(rank)
        _facts(rows, job, dump, where[rank])
        before = {
            (call.group, call.seq, call.created_ns)
            for older in job.dumps[rank][:-1]
            for progress in older.progress.values()
            for call in progress.opened
        }
        last = last_instant(dump) or job.newest_ns or 0
        rows.span(
            rank, "user", "flight_recorder", dump.first_ns or last, last,
            attributes=_attributes({"source": str(dump.path)}),
        )  # fmt: skip
        said = disagreements.get(rank, {})
        for name, progress in dump.progress.items():
            team = known.of(dump, name)
            if team is None:
                continue
            for call in progress.opened:
                key = None if call.pair else (team.id, call.seq)
                seen = 1 + ((call.group, call.seq, call.created_ns) in before)
                _open(rows, dump, team, call, seen, said.pop(key, None) if key else None)
        for (_, seq), (other, signature, created) in said.items():
            _ended(rows, dump, other, seq, signature, created, signatures)
    return rows


def _group(team: Team) -> dict[str, Any]:
    return {
        "id": team.id,
        "name": team.name,
        "ranks": sorted(team.members),
        "description": team.description,
        "backend": team.backend,
        "told": team.told,
    }


def _facts(rows: Rows, job: Job, dump: Dump, where: dict[str, Standing]) -> None:
    rows.fact(dump, "rank", {"world_size": job.world, "host": dump.host})
    if dump.library:
        rows.fact(dump, "nccl", {"version": dump.library})
    groups = {}
    for group, standing in where.items():
        numbers = {
            "enqueued": standing.enqueued,
            "started": standing.started,
            "completed": standing.completed,
        }
        sites = {str(seq): frame for seq, frame in standing.sites.items()}
        groups[group] = {**numbers, "dumps": standing.dumps, "sites": sites}
        if standing.enqueued is not None:
            rows.fact(dump, "last_seq", {"group": group, **numbers})
    told = {
        "file": str(dump.path),
        "version": dump.version,
        "entries": dump.entries,
        "dumps": len(job.dumps[dump.rank]),
        "written_ns": dump.written_ns,
        "newest_ns": dump.newest_ns,
        "frame": dump.frame,
        "left_out": sum(progress.more for progress in dump.progress.values()),
        "groups": groups,
    }
    rows.fact(dump, "dump", told)


def _open(
    rows: Rows,
    dump: Dump,
    team: Team,
    call: Call,
    seen: int,
    disagrees: tuple[Team, int, int] | None,
) -> None:
    peer = None
    if call.pair is not None and call.pair[2] < len(team.members):
        peer = team.members[call.pair[2]]
    told = {
        "source": str(dump.path),
        "state": "started" if call.started else "scheduled",
        "dumps": seen,
        "frame": call.frame,
        "retired": call.retired or None,
        "timeout_ms": call.timeout_ms,
        "sent": call.sent,
        "received": call.received,
        "disagrees": None if disagrees is None else _words(call.op, call.elements, call.dtype),
    }
    rows.span(
        dump.rank, "comm", call.name, call.created_ns, last_instant(dump), is_open=True,
        collective_op=call.pair[0] if call.pair else call.op, collective_group=team.id,
        collective_seq=call.seq, collective_bytes=call.nbytes, collective_dtype=call.dtype,
        group_size=len(team.members) or None, peer_rank=peer, attributes=_attributes(told),
    )  # fmt: skip


def _ended(
    rows: Rows,
    dump: Dump,
    team: Team,
    seq: int | None,
    signature: int,
    created: int,
    signatures: list[Signature],
) -> None:
    op, elements, dtype = signatures[signature]
    told = {
        "source": str(dump.path),
        "state": "ended" if team.backend == "gloo" else "completed",
        "disagrees": _words(op, elements, dtype),
    }
    rows.span(
        dump.rank, "comm", op, created, created, collective_op=op, collective_group=team.id,
        collective_seq=seq, collective_bytes=bytes_of(elements, dtype) if elements >= 0 else None,
        collective_dtype=dtype, group_size=len(team.members) or None, status="ok",
        attributes=_attributes(told),
    )  # fmt: skip


def _words(op: str, elements: int, dtype: str | None) -> str:
    if elements < 0 or op == "barrier":
        return f"{op} of {dtype}" if dtype else op
    return f"{op} of {elements} {dtype or 'numbers'}"


def _attributes(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, json.dumps(value)) for name, value in told.items() if value is not None]


Found = dict[int, dict[tuple[str, int | None], tuple[Team, int, int]]]


def _disagreements(job: Job, known: Teams, signatures: list[Signature]) -> Found:
    """The first collective of each group about which its members disagree, by rank."""
    calls: dict[tuple[str, int], dict[int, list[tuple[int, int]]]] = {}
    teams: dict[str, Team] = {}
    for rank in job.dumps:
        dump = job.last(rank)
        for name, progress in dump.progress.items():
            team = known.of(dump, name)
            if team is None:
                continue
            teams[team.id] = team
            last = progress.last
            for i in range(0, len(last), 3):
                by_signature = calls.setdefault((team.id, last[i]), {})
                by_signature.setdefault(last[i + 1], []).append((rank, last[i + 2]))
    first: dict[str, int] = {}
    for (group, seq), by_signature in calls.items():
        if len(by_signature) > 1 and seq < first.get(group, seq + 1) and 0 not in by_signature:
            told = [signatures[number] for number in by_signature]
            if any(_differ(told[0], other) for other in told[1:]):
                first[group] = seq
    found: Found = {}
    for group, seq in first.items():
        for signature, ranks in calls[group, seq].items():
            for rank, created in ranks:
                found.setdefault(rank, {})[group, seq] = teams[group], signature, created
    return found


def _differ(one: Signature, other: Signature) -> bool:
    """Whether two ranks' parts of a call cannot belong together."""
    if one[0] != other[0]:
        return True
    if one[2] is not None and other[2] is not None and one[2] != other[2]:
        return True
    return one[1] >= 0 and other[1] >= 0 and one[1] != other[1]
