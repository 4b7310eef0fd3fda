"""Findings from NCCL's Inspector, which measures each collective on each rank.

A rank's time of a collective has the wait for the others in it. So the rank whose time is the
SHORTEST came last, and what the fastest part took is what the transfer takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any

from tracekit.analysis.network.facts import Told
from tracekit.analysis.options import Options
from tracekit.dataset.engine import Engine
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say
from tracekit.findings.result import CollectiveSummary

__all__ = ["inspector_findings", "measured_collectives"]

_ALIKE = 3
"""Communicators of one kind below which nothing tells which of them is slow."""
_SLOW = 0.5
_SHORT = 0.5
"""A part that is shorter than this, against the others', was not spent waiting."""

_Row = Mapping[str, Any]


def inspector_findings(told: Told, options: Options) -> Iterator[Finding]:
    """Who comes last to collectives, which communicators are slow, whose records end early."""
    yield from _late(told, options)
    yield from _slow_groups(told)
    yield from _behind(told)


def _late(told: Told, options: Options) -> Iterator[Finding]:
    """The rank that is last in most calls of an operation, the one that costs the most."""
    late: dict[int, list[tuple[_Row, str]]] = {}
    for row, source in told.bandwidths:
        one = row.get("shortest") or {}
        rank = one.get("rank")
        if rank is None or int(one["of"]) < options.critical_steps:
            continue
        often = int(one["in"]) >= options.persistent_share * int(one["of"])
        if often and one["time_us"] <= _SHORT * one["others_time_us"]:
            late.setdefault(int(rank), []).append((row, source))
    for rank, rows in sorted(late.items(), key=lambda item: -_cost(item[1])):
        row, source = max(rows, key=lambda pair: _cost([pair]))
        told_of = row["shortest"]
        later = told_of.get("begins_later_us")
        denied = later is not None and later < 0.5 * told_of["imposed_us"]
        yield Finding(
            "straggler.rank",
            Severity.INFO if denied else Severity.WARNING,
            Certainty.CANNOT_TELL if denied else Certainty.LIKELY,
            say(
                "net.inspector.late", rank=rank, op=row["op"], size=row["size"],
                own=told_of["time_us"] / 1e3, others=told_of["others_time_us"] / 1e3,
                count=told_of["in"], of=told_of["of"],
            ),
            ranks=(rank,),
            lost_ms=_cost(rows) / 1e3,
            evidence={
                "class": None,
                "host": told_of["host"],
                "group": row["group"],
                "imposed_us": told_of["imposed_us"],
                "begins_later_us": later,
                "operations": [{k: r[k] for k in ("op", "bytes", "calls")} for r, _ in rows[:16]],
                "lines": [place for _, place in rows if place][:8],
            },
            advice=(say("advice.net.inspector.late", host=told_of["host"], rank=rank),),
        )  # fmt: skip


def _cost(rows: Sequence[tuple[_Row, str]]) -> float:
    return sum(float(r["shortest"]["imposed_us"]) * int(r["shortest"]["in"]) for r, _ in rows)


def _slow_groups(told: Told) -> Iterator[Finding]:
    """Communicators that move much less than others of their kind, waiting set aside."""
    kinds: dict[tuple[str, int, int, int], list[tuple[_Row, str]]] = {}
    for row, source in told.bandwidths:
        if row.get("busbw_gbs") and row["bytes"] >= 1 << 20:
            key = row["op"], int(row["size"]), int(row["bytes"]), int(row.get("nodes") or 0)
            kinds.setdefault(key, []).append((row, source))
    worst: dict[str, tuple[float, float, _Row, str]] = {}
    for alike in kinds.values():
        if len(alike) < _ALIKE:
            continue
        usual = median_high([row["busbw_gbs"] for row, _ in alike])
        for row, source in alike:
            speed = float(row["busbw_gbs"])
            known = worst.get(row["group"])
            if speed < _SLOW * usual and (known is None or speed / usual < known[0] / known[1]):
                worst[row["group"]] = speed, usual, row, source
    for group, (speed, usual, row, source) in sorted(worst.items()):
        ranks = tuple(row.get("ranks") or ())
        yield Finding(
            "comm.bandwidth",
            Severity.WARNING,
            Certainty.LIKELY,
            say(
                "net.inspector.slow", op=row["op"], group=row.get("name") or group,
                who=ranks_words(ranks) if ranks else ", ".join(row["hosts"][:4]),
                speed=speed, usual=usual,
            ),
            evidence={
                "class": "net_port",
                "hosts": row["hosts"],
                "group": group,
                "group_ranks": list(ranks),
                "busbw_gbs": speed,
                "usual_gbs": usual,
                "lines": [source] if source else [],
            },
            advice=(say("advice.net.inspector.slow", hosts=", ".join(row["hosts"][:4])),),
        )  # fmt: skip


def _behind(told: Told) -> Iterator[Finding]:
    """Ranks whose records end before the others': the Inspector writes what is completed."""
    for value in told.ends:
        for op, last in (value.get("last") or {}).items():
            numbers = {int(rank): int(number) for rank, number in last.items()}
            most = max(numbers.values(), default=0)
            late = tuple(sorted(rank for rank, number in numbers.items() if number < most))
            if late and value.get("there") == value.get("size"):
                yield Finding(
                    "hang.missing_rank", Severity.INFO, Certainty.CANNOT_TELL,
                    say("net.inspector.ends", ranks=ranks_words(late), op=op, most=most,
                        least=min(numbers.values())),
                    ranks=late,
                    evidence={"class": None, "group": value.get("group"), "last": dict(last)},
                )  # fmt: skip
                return


def measured_collectives(engine: Engine, attempt: int) -> tuple[CollectiveSummary, ...]:
    """What the Inspector measured, an operation of a communicator and a size each."""
    rows = engine.sql(
        f"SELECT value FROM facts WHERE attempt = {attempt} AND name = 'nccl_bandwidth'"
    ).to_pylist()
    return tuple(
        CollectiveSummary(
            str(row["op"]),
            str(row.get("name") or row["group"]),
            int(row["size"]),
            int(row["calls"]),
            int(row["bytes"]) * int(row["calls"]),
            algbw_gbs=row.get("algbw_gbs"),
            busbw_gbs=row.get("busbw_gbs"),
            call_ms=row["time_us"] / 1e3,
            algbw_with_wait_gbs=row.get("algbw_with_wait_gbs"),
            busbw_with_wait_gbs=row.get("busbw_with_wait_gbs"),
            source="nccl_inspector",
        )
        for row in (json.loads(one["value"]) for one in rows)
    )
