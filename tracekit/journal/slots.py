"""Sets of slots as runs ``(first, end)``: which records of a journal are already elsewhere.

A slot is counted through all segments: number of the segment times the slots of one, plus the
place in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Run", "clip", "count", "merge"]

Run = tuple[int, int]


def merge(runs: Iterable[Sequence[int]]) -> list[Run]:
    """The same slots in as few runs as possible, in order."""
    merged: list[Run] = []
    for first, end in sorted((run[0], run[1]) for run in runs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif first < end:
            merged.append((first, end))
    return merged


def clip(runs: Iterable[Run], first: int, end: int) -> list[Run]:
    """The part of merged runs that lies in ``first`` to ``end``."""
    return [(max(a, first), min(b, end)) for a, b in runs if a < end and b > first]


def count(runs: Iterable[Run]) -> int:
    """How many slots merged runs hold."""
    return sum(end - first for first, end in runs)
