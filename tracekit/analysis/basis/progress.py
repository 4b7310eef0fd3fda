"""Whether a rank gets ahead in what it is in the middle of, by what it counts itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

if TYPE_CHECKING:
    from tracekit.analysis.basis.ends import Open

__all__ = ["Counter", "read_counters", "read_tallies", "usual_ns"]

_MEASURED = {
    "loss", "lr", "grad_norm", "grad_scale", "loss_scale", "memory", "gradient_nonfinite",
    "gradient_saturated", "profile_window", "profile_window_skipped",
}  # fmt: skip
"""Events of adapters that say how something is, and not how much is done."""
_LEAST_OTHERS = 2
"""Ranks that must have ended what one is in, to say how long it takes."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that a rank told more than once in what it is in the middle of; it never fell."""

    name: str
    value: float
    rose_ns: int
    """When it reached its value."""
    told_ns: int
    """When it was told last."""


def read_counters(engine: Engine, attempt: int, inside: Mapping[int, Open]) -> dict[int, Counter]:
    """Of each rank the counter that rose last; ``inside`` is what the ranks are in."""
    if not inside:
        return {}
    since = min(one.start_ns for one in inside.values())
    told: dict[tuple[int, str], list[tuple[int, int, float]]] = defaultdict(list)
    for row in engine.sql(query("counters", attempt=attempt, since=since)).to_pylist():
        rank = row["rank"]
        if row["name"] in _MEASURED:
            continue
        if rank in inside and row["first_ns"] >= inside[rank].start_ns:
            times = row["first_ns"], row["last_ns"]
            told[rank, row["name"]].append((*times, row["value"]))
    found: dict[int, Counter] = {}
    for (rank, name), values in sorted(told.items()):
        values.sort()
        rises = all(before[2] < after[2] for before, after in pairwise(values))
        first, last, value = values[-1]
        if not rises or (len(values) == 1 and first == last):
            continue
        if rank not in found or first > found[rank].rose_ns:
            found[rank] = Counter(name, value, first, last)
    return found


def usual_ns(engine: Engine, attempt: int, rank: int, inside: Open) -> float | None:
    """How long others took for what a rank is in: the median of the longest of each."""
    if inside.id is None:
        return None
    asked = query("lasted", attempt=attempt, rank=rank, span=inside.id)
    took = [r["longest_ns"] for r in engine.sql(asked).to_pylist() if r["rank"] != rank]
    return median(took) if len(took) >= _LEAST_OTHERS else None


def read_tallies(engine: Engine, attempt: int) -> dict[int, dict[str, float]]:
    """How far each rank has counted, of whatever it counts."""
    found: dict[int, dict[str, float]] = {}
    for row in engine.sql(query("tallies", attempt=attempt)).to_pylist():
        if row["name"] not in _MEASURED:
            found.setdefault(row["rank"], {})[row["name"]] = row["value"]
    return found
