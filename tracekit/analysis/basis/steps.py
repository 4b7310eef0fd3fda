"""Which steps the statistics rest on: complete, past warm-up, without checkpoint or evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.analysis.basis.tables import Tables
from tracekit.analysis.options import Options

__all__ = ["Steps", "choose_steps"]

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Steps:
    """Places of steps in the arrays."""

    complete: Places
    """Ended on all ranks."""
    warm: Places
    """Complete and past warm-up."""
    used: Places
    """Warm, and none of those that are set aside: the statistics rest on them."""
    warm_up: int
    """Complete steps that warm-up took."""
    untraced: Places = field(default_factory=lambda: np.zeros(0, np.intp))
    """Past warm-up, with nothing recorded in them: they tell what recording costs."""


def choose_steps(tables: Tables, options: Options) -> Steps:
    """Sort the steps of a run."""
    wall = tables.values["wall"]
    closed = ~np.isnan(wall).any(axis=1) & ~tables.is_open.any(axis=1)
    complete = np.flatnonzero(closed)
    complete = _without_stub(complete, tables)
    mean = wall[complete].mean(axis=1) if len(complete) else np.zeros(0, np.float32)
    warm_up = _warm_up(mean, tables.calls[complete], tables.bytes[complete], options)
    warm = complete[warm_up:]
    untraced = tables.is_untraced[warm].any(axis=1)
    warm, dark = warm[~untraced], warm[untraced]
    special = tables.values["own_checkpoint"][warm] + tables.values["own_eval"][warm]
    flagged = (special > 0).any(axis=1)
    few = flagged.mean() <= options.set_aside_at_most if len(warm) else False
    return Steps(complete, warm, warm[~flagged] if few else warm, warm_up, dark)


def _without_stub(complete: Places, tables: Tables) -> Places:
    """Leave out a last step in which nothing was communicated though all others communicate.

    Where steps tile, the last one begins at the end of the training and holds what comes after.
    """
    if len(complete) < 2:
        return complete
    calls = tables.calls[complete]
    stub = calls[-1] == 0 and np.median(calls[:-1]) > 0
    return complete[:-1] if stub else complete


def _warm_up(
    mean: npt.NDArray[np.float32],
    calls: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.float64],
    options: Options,
) -> int:
    """Steps until some in a row have the same collectives and about the time of all later ones."""
    alike = options.warm_up_alike
    most = min(options.warm_up_at_most, max(0, len(mean) - alike))
    for first in range(most + 1):
        row = slice(first, first + alike)
        same = len(set(zip(calls[row].tolist(), nbytes[row].tolist(), strict=True))) <= 1
        usual = np.median(mean[first:]) if len(mean) > first else 0.0
        if same and (mean[row] <= options.warm_up_times_median * usual).all():
            return first
    return most
