"""What recording cost the training: by account, and measured where blocks of steps went without."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import Overview, Tables
from tracekit.analysis.options import Options
from tracekit.findings.result import Overhead

__all__ = ["overhead"]

Floats = npt.NDArray[np.float64]
_LEAST_PAIRS = 6
_RESAMPLES = 2000


def overhead(
    seen: Overview, facts: Facts, tables: Tables | None, steps: Steps | None, options: Options
) -> Overhead | None:
    """The cost in a mean step of the rank for which it was most; None where there are no steps."""
    if tables is None or steps is None or not len(steps.used):
        return None
    wall = tables.values["wall"].mean(axis=1, dtype=np.float64)
    step_ns = float(np.median(wall[steps.used]))
    spans, costs = [0.0], []
    for rank, kinds in seen.step_spans.items():
        traced = max(1, kinds.get("step", 0))
        spans.append(sum(kinds.values()) / traced)
        cost = facts.of(rank).cost
        if "span_ns" in cost:
            calls = kinds.get("comm", 0) / traced
            each = max(cost["span_ns"], cost.get("call_ns", 0.0))
            costs.append((spans[-1] - calls) * cost["span_ns"] + calls * each)
    accounted = max(costs, default=None)
    slowdown, low, high = _measured(wall, steps)
    return Overhead(
        max(spans),
        None if accounted is None else accounted / 1e3,
        None if accounted is None else accounted / step_ns,
        slowdown,
        low,
        high,
        None if low is None or high is None else high - low <= options.overhead_interval,
    )


def _measured(wall: Floats, steps: Steps) -> tuple[float | None, float | None, float | None]:
    """The slowdown of traced steps against untraced ones, and its interval of 95 %.

    Each run of untraced steps stands against the traced ones just before and after it; the
    interval is a bootstrap's over these, since neighbouring steps are alike.
    """
    ratios = [
        np.median(np.concatenate([wall[before], wall[after]])) / np.median(wall[dark])
        for before, dark, after in _runs(steps)
    ]
    if len(ratios) < _LEAST_PAIRS:
        return None, None, None
    found = np.array(ratios) - 1
    drawn = np.random.default_rng(0).choice(found, (_RESAMPLES, len(found)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(found)), float(low), float(high)


def _runs(
    steps: Steps,
) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Runs of untraced steps, each with as many steps in use before and after it."""
    if not len(steps.untraced):
        return []
    runs = np.split(steps.untraced, np.flatnonzero(np.diff(steps.untraced) > 1) + 1)
    found = []
    for run in runs:
        half = len(run) // 2
        before = steps.used[steps.used < run[0]][-half:]
        after = steps.used[steps.used > run[-1]][:half]
        if half and len(before) == len(after) == half:
            found.append((before, run, after))
    return found
