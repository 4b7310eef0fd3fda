"""Pipeline stages that have more work than the others, whichever of their ranks does it."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from tracekit.analysis.basis.steps import Places, Steps
from tracekit.analysis.basis.tables import PHASES, Tables
from tracekit.analysis.options import Options
from tracekit.analysis.roles.peers import Sets
from tracekit.analysis.slow.court import Array
from tracekit.analysis.slow.stragglers import sign_test

__all__ = ["StageVerdict", "judge_stages"]


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """Stages that all others wait for; times are nanoseconds a step."""

    stages: tuple[int, ...]
    """Their numbers, from 0."""
    of: int
    ranks: tuple[int, ...]
    share: float
    """How much more work they have in the usual step than the next stage, in median steps."""
    imposed: float
    """The same in the mean step."""
    p: float
    cause: str
    excess: dict[str, float]
    own: tuple[float, ...]
    """Own work of each stage."""
    places: Places
    confirmed: bool


def judge_stages(
    tables: Tables, steps: Steps, stages: Sets, own: Array, options: Options
) -> StageVerdict | None:
    """Whether some stages, at most half of them, have more work than the rest.

    A stage has the work that half of its ranks have at least: an odd rank in it is no stage.
    """
    if len(stages) < 2 or not len(steps.used):
        return None
    used = steps.used
    work = _of_stages(tables, stages, own[used])
    usual = float(np.median(tables.values["wall"][used].astype(np.float64).mean(axis=1)))
    order = np.argsort(-work.mean(axis=0))
    mean = work.mean(axis=0)[order]
    heavy = 1 + int(np.argmax((mean[:-1] - mean[1:])[: len(stages) // 2]))
    most, rest = order[:heavy], order[heavy:]
    more = work[:, most].min(axis=1) - work[:, rest].max(axis=1)
    imposed = np.maximum(more, 0.0)
    blocks = np.array_split(np.arange(len(used)), max(1, len(used) // options.block_steps))
    share = float(np.median(imposed)) / usual
    late = imposed >= options.straggler_warning * usual
    if share < options.straggler_warning:
        return None
    ways = comb(len(stages), heavy)
    p = sign_test(sum(np.median(more[b]) > 0 for b in blocks), len(blocks), 1 / ways, ways)
    confirmed = p < options.p_value
    enough = sign_test(len(blocks), len(blocks), 1 / ways, ways) < options.p_value
    if not confirmed and (enough or late.mean() < options.consistent_share):
        return None
    excess, steady = {}, {}
    for phase in PHASES:
        spent = _of_stages(tables, stages, tables.values[f"own_{phase}"][used].astype(np.float64))
        more_of_it = spent[:, most].min(axis=1) - spent[:, rest].max(axis=1)
        excess[phase] = float(np.median(more_of_it))
        steady[phase] = float(np.quantile(more_of_it, options.cause_quantile))
    positive = sum(max(0.0, ns) for ns in steady.values())
    cause = max(steady, key=lambda name: steady[name])
    known = 0 < positive * options.cause_share <= steady[cause]
    numbers = tuple(sorted(most.tolist()))
    return StageVerdict(
        numbers,
        len(stages),
        tuple(sorted(rank for number in numbers for rank in stages[number])),
        share,
        float(imposed.mean()),
        p,
        cause if known else "unknown",
        excess,
        tuple(work.mean(axis=0).tolist()),
        used[late],
        confirmed,
    )


def _of_stages(tables: Tables, stages: Sets, values: Array) -> Array:
    """The lower median over the ranks of each stage."""
    place = {rank: i for i, rank in enumerate(tables.ranks)}
    columns = []
    for ranks in stages:
        ordered = np.sort(values[:, [place[rank] for rank in ranks]], axis=1)
        columns.append(ordered[:, (len(ranks) - 1) // 2])
    return np.stack(columns, axis=1)
