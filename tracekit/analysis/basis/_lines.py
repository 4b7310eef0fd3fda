"""The straight lines that pass between bounds, and the middle of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "Line", "middle"]

Floats = npt.NDArray[np.float64]
Point = tuple[float, float]
_STEEPEST = 500e-6
"""Clocks drift by less than that: what the kernel slews at most."""
_SLACK = 0.5


class Bounds(NamedTuple):
    """Points, in time and value, that a line may not pass below, or above."""

    lower: Sequence[Point]
    upper: Sequence[Point]


class Line(NamedTuple):
    """``start`` at the beginning, ``slope`` from then on, and how far off it can be at most."""

    start: float
    slope: float
    error: float


def middle(bounds: Bounds, begin: float, end: float) -> Line | None:
    """The middle of all lines that keep the bounds from begin to end; None where there is none.

    At both ends it is half-way between the highest and the lowest line, so no line that keeps the
    bounds is ever farther from it than at one of the ends: the highest lines make a convex curve,
    the lowest a concave one.
    """
    lower, upper = _hull(bounds.lower, 1.0), _hull(bounds.upper, -1.0)
    if not lower or not upper:
        return None
    lines = _corners(lower, upper)
    if not len(lines):
        return None
    ends = [lines[:, 0] + lines[:, 1] * time for time in (begin, end)]
    low, high = [float(at.min()) for at in ends], [float(at.max()) for at in ends]
    centre = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    slope = (centre[1] - centre[0]) / (end - begin) if end > begin else 0.0
    error = max((b - a) / 2 for a, b in zip(low, high, strict=True))
    return Line(centre[0], slope, error)


def _hull(points: Sequence[Point], side: float) -> list[Point]:
    """The points that matter: the upper hull of lower bounds (1), the lower hull of upper ones."""
    found: list[Point] = []
    for x, y in sorted(set(points)):
        while len(found) > 1 and side * _turn(found[-2], found[-1], (x, y)) >= 0:
            found.pop()
        if found and found[-1][0] == x:
            if side * (y - found[-1][1]) <= 0:
                continue
            found.pop()
        found.append((x, y))
    return found


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _corners(lower: Sequence[Point], upper: Sequence[Point]) -> Floats:
    """The corners of the region of all lines that keep the bounds: value at time 0 and slope."""
    points = [*lower, *upper]
    slopes = [(y - other, x - start) for (start, other), (x, y) in combinations(points, 2)]
    through = [start for start, _ in combinations(points, 2)]
    lines = [
        (y - x * rise / run, rise / run)
        for (x, y), (rise, run) in zip(through, slopes, strict=True)
        if run and abs(rise / run) <= _STEEPEST
    ]
    lines += [(y - x * slope, slope) for x, y in points for slope in (-_STEEPEST, _STEEPEST)]
    found = np.array(lines).reshape(-1, 2)
    below, above = np.array(lower), np.array(upper)
    values = found[:, :1] + found[:, 1:] * below[:, 0]
    kept = (values >= below[:, 1] - _SLACK).all(axis=1)
    values = found[:, :1] + found[:, 1:] * above[:, 0]
    kept &= (values <= above[:, 1] + _SLACK).all(axis=1)
    corners: Floats = found[kept]
    return corners
