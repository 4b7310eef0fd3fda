"""Sets of intervals: many small ones united into few, with a bound on what that adds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NONE", "Gathered", "Pair", "bridge", "minus", "total", "union"]

Ints = npt.NDArray[np.int64]
Pair = tuple[Ints, Ints]
"""Starts and ends, ordered; of a union they neither touch nor overlap."""

_FOLD_AT = 1 << 20
NONE: Pair = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(starts: Ints, ends: Ints, gap: int = 0) -> Pair:
    """Unite intervals that overlap or lie at most ``gap`` apart."""
    if not len(starts):
        return NONE
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), bool)
    first[1:] = starts[1:] - reach[:-1] > gap
    last = np.append(np.flatnonzero(first)[1:] - 1, len(starts) - 1)
    return starts[first], reach[last]


def total(pair: Pair) -> int:
    """How much time the intervals of a union take."""
    return int((pair[1] - pair[0]).sum())


def minus(pair: Pair, other: Pair) -> Pair:
    """What of a union is in no interval of another one."""
    if not len(pair[0]) or not len(other[0]):
        return pair
    edges = np.concatenate([pair[0], pair[1], other[0], other[1]])
    inside = np.repeat([1, -1, 0, 0], [len(pair[0]), len(pair[1]), len(other[0]), len(other[1])])
    taken = np.repeat([0, 0, 1, -1], [len(pair[0]), len(pair[1]), len(other[0]), len(other[1])])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    free = (np.cumsum(inside[order]) > 0) & (np.cumsum(taken[order]) == 0)
    keep = free[:-1] & (edges[1:] > edges[:-1])
    return union(edges[:-1][keep], edges[1:][keep])


def bridge(pair: Pair, budget: int) -> Pair:
    """Unite across the smallest gaps of a union, as long as they add no more than ``budget``."""
    starts, ends = pair
    if len(starts) < 2:
        return pair
    gaps = starts[1:] - ends[:-1]
    order = np.argsort(gaps, kind="stable")
    crossed = order[np.cumsum(gaps[order]) <= budget]
    apart = np.ones(len(gaps), bool)
    apart[crossed] = False
    return starts[np.append(True, apart)], ends[np.append(apart, True)]


class Gathered:
    """A union that grows, in bounded memory: beyond a million intervals close ones are united."""

    __slots__ = ("_ends", "_gap", "_starts", "count")

    def __init__(self) -> None:
        self._starts: list[Ints] = []
        self._ends: list[Ints] = []
        self._gap = 0
        self.count = 0

    def add(self, starts: Ints, ends: Ints) -> None:
        """Add intervals, in any order."""
        starts, ends = union(starts, ends, self._gap)
        self._starts.append(starts)
        self._ends.append(ends)
        self.count += len(starts)
        if self.count > _FOLD_AT:
            folded = self.united()
            while len(folded[0]) > _FOLD_AT // 2:
                self._gap = max(1000, 2 * self._gap)
                folded = union(*folded, self._gap)
            self._starts, self._ends, self.count = [folded[0]], [folded[1]], len(folded[0])

    def united(self) -> Pair:
        """All of them as a union."""
        if not self._starts:
            return NONE
        return union(np.concatenate(self._starts), np.concatenate(self._ends), self._gap)
