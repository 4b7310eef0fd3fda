"""Whether the clocks of hosts can be compared, and what to add to their times.

Ranks of one boot of one host read one clock. Between two clocks the offset lies in the interval
that causality allows, with a drift that is constant for a while: nobody leaves a call before
everybody has come. The estimate is the middle of the interval, the error half its width. Fitting
residuals instead would be biased by who is last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tracekit.analysis.basis._lines import Bounds, middle
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine
from tracekit.findings.result import Clock, ClockDomain
from tracekit.model import DIRECTION_OF_OP, Correction

__all__ = ["align", "put_on_one_clock"]

_BLOCKS = 256
_FEW_DOMAINS = 8
"""Up to so many, every pair of clocks is compared; of more, each one with the first."""
_DEEPEST = 4
"""A run is halved so often, where no straight line keeps the bounds: clocks are set, or slewed."""
_LARGEST_ERROR = 0.1
"""Of a mean step; with more, times of two hosts say nothing about who was late."""
_FOREVER = 1 << 62


@dataclass(slots=True)
class _Pair:
    """What two clocks say of each other: blocks of time with a lower and an upper bound."""

    lower: list[tuple[int, int]] = field(default_factory=list)
    upper: list[tuple[int, int]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """When calls were made, the first and the last of each block at least."""


def align(
    engine: Engine, seen: Overview, facts: Facts
) -> tuple[Clock, dict[int, list[Correction]]]:
    """The clocks of the run, and what corrects each rank; empty if that is not needed or known."""
    domains: dict[str, list[int]] = {}
    for rank in seen.ranks:
        of = facts.of(rank)
        domains.setdefault(of.domain or of.host, []).append(rank)
    read_us = max((facts.of(rank).clock_error_us or 0.0 for rank in seen.ranks), default=0.0)
    listed = list(domains.values())
    found: dict[int, list[Correction]] = {0: []}
    if len(listed) > 1:
        found = _corrections(_bounds(engine, seen, listed), len(listed))
    error_us = max((c.error_ns for some in found.values() for c in some), default=0.0) / 1e3
    aligned = len(found) == len(listed) and error_us <= _LARGEST_ERROR * _step_us(seen)
    clock = Clock(
        aligned,
        error_us + read_us if aligned else None,
        tuple(
            _told(facts.of(ranks[0]).host, tuple(ranks), found.get(place), read_us)
            for place, ranks in enumerate(listed)
        ),
    )
    by_rank: dict[int, list[Correction]] = {}
    if aligned and len(listed) > 1:
        by_rank = {rank: found[place] for place, ranks in enumerate(listed) for rank in ranks}
    return clock, by_rank


def _told(
    host: str, ranks: tuple[int, ...], known: list[Correction] | None, read_us: float
) -> ClockDomain:
    if known is None:
        return ClockDomain(host, ranks, None, None, None)
    if not known:
        return ClockDomain(host, ranks, 0.0, 0.0, read_us)
    first, error = known[0], max(c.error_ns for c in known) / 1e3
    return ClockDomain(host, ranks, first.offset_ns / 1e3, first.drift * 1e6, error + read_us)


def _step_us(seen: Overview) -> float:
    """About how long a step takes."""
    whole = max(seen.last_ns.values()) - seen.first_ns
    return whole / max(seen.steps, 1) / 1e3


def _bounds(
    engine: Engine, seen: Overview, domains: list[list[int]]
) -> dict[tuple[int, int], _Pair]:
    number = {rank: place for place, ranks in enumerate(domains) for rank in ranks}
    ranks = pa.array([*number], pa.int32())
    engine.register("domains", pa.table({"rank": ranks, "domain": pa.array([*number.values()])}))
    directions = {op: direction.value for op, direction in DIRECTION_OF_OP.items()}
    table = {"op": [*directions], "direction": [*directions.values()]}
    engine.register("directions", pa.table(table))
    extent = engine.sql(query("extent", attempt=seen.attempt)).to_pylist()[0]
    if extent["first_ns"] is None:
        return {}
    text = query(
        "bounds",
        attempt=seen.attempt,
        origin=extent["first_ns"],
        block_ns=max((extent["last_ns"] - extent["first_ns"]) // _BLOCKS, 1_000_000),
        farthest=_FEW_DOMAINS if len(domains) <= _FEW_DOMAINS else 0,
    )
    found: dict[tuple[int, int], _Pair] = {}
    for row in engine.sql(text).to_pylist():
        pair = found.setdefault((row["one"], row["other"]), _Pair())
        pair.lower.append((row["lower_at_ns"], row["lower_ns"]))
        pair.upper.append((row["upper_at_ns"], row["upper_ns"]))
        pair.times += row["first_ns"], row["last_ns"]
    return found


def _corrections(pairs: dict[tuple[int, int], _Pair], count: int) -> dict[int, list[Correction]]:
    """The corrections of each domain that is tied to the first one, through others if need be."""
    found: dict[int, list[Correction]] = {0: []}
    waiting = deque([0])
    while waiting:
        here = waiting.popleft()
        for there in range(count):
            if there in found or (pair := _between(pairs, here, there)) is None:
                continue
            lines = _lines(pair)
            if lines is not None:
                found[there] = _after(found[here], lines)
                waiting.append(there)
    return found


def _between(pairs: dict[tuple[int, int], _Pair], here: int, there: int) -> _Pair | None:
    """What takes ``there`` to the clock of ``here``."""
    pair = pairs.get((here, there))
    if pair is None and (turned := pairs.get((there, here))) is not None:
        pair = _Pair(
            [(time, -value) for time, value in turned.upper],
            [(time, -value) for time, value in turned.lower],
            turned.times,
        )
    return pair


def _lines(pair: _Pair, depth: int = _DEEPEST) -> list[Correction] | None:
    """Corrections over a time; a part in which no straight line keeps the bounds is halved."""
    if not pair.lower or not pair.upper:
        return None
    first, last = min(pair.times), max(pair.times)
    base = pair.lower[0][1]  # clocks differ by anything: small numbers keep their digits
    line = middle(
        Bounds(
            [(float(time - first), float(value - base)) for time, value in pair.lower],
            [(float(time - first), float(value - base)) for time, value in pair.upper],
        ),
        0.0,
        float(last - first),
    )
    if line is not None:
        offset = base + round(line.start)
        return [Correction(-_FOREVER, _FOREVER, first - offset, offset, line.slope, line.error)]
    half = (first + last) // 2
    if not depth or half == first:
        return None
    before, after = (
        _lines(_part(pair, *ends), depth - 1) for ends in ((first, half), (half + 1, last))
    )
    if before is None or after is None:
        return None
    border = half + 1 - after[0].offset_ns  # as the clock itself had it
    return [*_cut(before, -_FOREVER, border), *_cut(after, border, _FOREVER)]


def _part(pair: _Pair, first: int, last: int) -> _Pair:
    lower, upper = (
        [point for point in points if first <= point[0] <= last]
        for points in (pair.lower, pair.upper)
    )
    return _Pair(lower, upper, [min(max(time, first), last) for time in pair.times])


def _cut(corrections: list[Correction], low: int, high: int) -> list[Correction]:
    """Corrections as far as they lie between two times."""
    return [
        replace(c, from_ns=max(c.from_ns, low), until_ns=min(c.until_ns, high))
        for c in corrections
        if c.from_ns < high and c.until_ns > low
    ]


def _after(known: list[Correction], more: list[Correction]) -> list[Correction]:
    """One correction after another: from a clock to the next, and from that to the first.

    Drift of drift is left out: it is below a millionth of a drift.
    """
    if not known:
        return more
    return [
        Correction(
            max(one.from_ns, other.from_ns - one.offset_ns),
            min(one.until_ns, other.until_ns - one.offset_ns),
            one.base_ns,
            one.offset_ns + other.at(one.base_ns + one.offset_ns),
            one.drift + other.drift,
            one.error_ns + other.error_ns,
        )
        for one in more
        for other in known
        if max(one.from_ns, other.from_ns - one.offset_ns)
        < min(one.until_ns, other.until_ns - one.offset_ns)
    ]


def put_on_one_clock(engine: Engine, by_rank: Mapping[int, list[Correction]]) -> None:
    """Make the view ``timed``: all spans, with their times corrected where that is needed."""
    if not by_rank:
        engine.view("timed", "SELECT * FROM spans")
        return
    rows = [
        (rank, c)
        for rank, some in by_rank.items()
        for c in some or [Correction(-_FOREVER, _FOREVER, 0, 0, 0.0, 0.0)]
    ]
    table = {
        "rank": pa.array([rank for rank, _ in rows], pa.int32()),
        "from_ns": pa.array([c.from_ns for _, c in rows], pa.int64()),
        "until_ns": pa.array([c.until_ns for _, c in rows], pa.int64()),
        "base_ns": pa.array([c.base_ns for _, c in rows], pa.int64()),
        "offset_ns": pa.array([c.offset_ns for _, c in rows], pa.int64()),
        "drift": pa.array([c.drift for _, c in rows], pa.float64()),
    }
    engine.register("corrections", pa.table(table))
    engine.view("timed", query("timed"))
