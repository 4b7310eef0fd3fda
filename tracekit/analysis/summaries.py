"""Numbers over the whole run: step times, shares, ranks, collectives, and what could be won."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import CLASSES, PHASES, Group, Tables
from tracekit.analysis.roles.peers import Peers
from tracekit.analysis.slow.judge import Judgement
from tracekit.findings.result import (
    CollectiveSummary,
    Mended,
    RankSummary,
    Shares,
    StepTimes,
    WhatIf,
)

__all__ = [
    "rank_summaries",
    "samples_per_second",
    "shares_of",
    "step_times",
    "summarize_collectives",
    "what_if",
]

_MS = 1e6
_BUS = {
    "all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "gather": 1.0,
    "scatter": 1.0,
}  # fmt: skip
"""What an operation moves over each link: so many times (n − 1)/n of its bytes, others all."""
_SMALL = 1 << 20
_MENDED = 8


def step_times(tables: Tables, steps: Steps) -> StepTimes | None:
    """How long the steps past warm-up took; a step takes what it takes its mean rank."""
    if not len(steps.warm):
        return None
    wall = tables.values["wall"][steps.warm].mean(axis=1, dtype=np.float64) / _MS
    return StepTimes(float(np.median(wall)), float(np.percentile(wall, 95)), float(wall.max()))


def samples_per_second(facts: Facts, times: StepTimes | None) -> float | None:
    """Samples of all ranks in a step over its time, where the ranks say their batch size."""
    batches = [of.batch for of in facts.ranks.values()]
    if times is None or not times.median or not batches or None in batches:
        return None
    return sum(batch for batch in batches if batch) / times.median * 1e3


def shares_of(tables: Tables, steps: Steps) -> Shares:
    """Parts of the time of the steps in use, over all ranks."""
    wall = _sum(tables, "wall", steps.used)
    share = {name: _sum(tables, name, steps.used) / wall for name in CLASSES}
    wait, queue, transfer = (
        _sum(tables, f"exposed_{part}", steps.used) / wall for part in ("wait", "queue", "transfer")
    )
    sampled = steps.used[tables.steps[steps.used] % tables.every == 0]
    some = sampled if len(sampled) else steps.used
    whole = _sum(tables, "wall", some)
    totals = [_sum(tables, f"{part}_total", some) / whole for part in ("wait", "queue", "transfer")]
    exposed = wait + queue + transfer
    busy = share["compute"] + exposed + share["data"]
    return Shares(
        **share,
        exposed_communication=exposed,
        wait=wait,
        queue=queue,
        transfer=transfer,
        communication_total=sum(totals),
        wait_total=totals[0],
        queue_total=totals[1],
        transfer_total=totals[2],
        utilization=share["compute"] / busy if busy else None,
    )


def _sum(tables: Tables, name: str, places: npt.NDArray[np.intp]) -> float:
    return float(tables.values[name][places].sum(dtype=np.float64))


def rank_summaries(
    ranks: tuple[int, ...],
    facts: Facts,
    tables: Tables | None,
    steps: Steps | None,
    judgement: Judgement | None,
) -> tuple[RankSummary, ...]:
    """Each rank in a mean step."""
    if tables is None or steps is None or not len(steps.used):
        return tuple(RankSummary(rank, facts.of(rank).host) for rank in ranks)
    used = steps.used
    own = (tables.values["wall"][used] - tables.values["blocked"][used]).mean(
        axis=0, dtype=np.float64
    )
    lateness = _mean_known(tables.lateness[used])
    wait = tables.values["exposed_wait"][used].mean(axis=0, dtype=np.float64)
    met = int(tables.last.sum())
    phases = {
        phase: tables.values[f"own_{phase}"][used].mean(axis=0, dtype=np.float64)
        for phase in PHASES
    }
    found = []
    for i, rank in enumerate(ranks):
        imposed = judgement.imposed[used, i].mean() / _MS if judgement and met else None
        found.append(
            RankSummary(
                rank,
                facts.of(rank).host,
                own[i] / _MS,
                float(own[i] / own.mean()) if own.mean() else None,
                None if np.isnan(lateness[i]) else float(lateness[i]) / _MS,
                float(imposed) if imposed is not None else None,
                wait[i] / _MS,
                float(tables.last[i] / met) if met else None,
                {phase: float(values[i]) / _MS for phase, values in phases.items()},
            )
        )
    return tuple(found)


def _mean_known(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0).sum(axis=0, dtype=np.float64)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def what_if(
    tables: Tables | None, steps: Steps | None, judgement: Judgement | None, peers: Peers | None
) -> WhatIf | None:
    """Steps against steps of ideal length: the mean own work and the usual transfer.

    Without a rank's excess, a step is shorter by what this rank alone imposed on the others.
    None where ranks do different work or never meet: then this replay would be wrong.
    """
    if tables is None or steps is None or judgement is None or peers is None:
        return None
    if len(peers.sets) != 1 or len(peers.sets[0]) != len(tables.ranks) or len(steps.used) < 5:
        return None
    if not tables.meetings[steps.used].all():
        return None
    used = steps.used
    wall = float(tables.values["wall"][used].mean(dtype=np.float64))
    moved = tables.values["exposed_transfer"][used] + tables.values["exposed_queue"][used]
    ideal = float(judgement.own[used].mean()) + float(np.median(moved))
    if ideal <= 0:
        return None
    imposed = judgement.imposed[used].mean(axis=0)
    worst = np.argsort(-imposed)[:_MENDED]
    mended = tuple(
        Mended(tables.ranks[i], max(1.0, float(wall - imposed[i]) / ideal))
        for i in worst.tolist()
        if imposed[i] > 0.01 * wall
    )
    return WhatIf(wall / ideal, mended)


def summarize_collectives(tables: Tables, facts: Facts) -> tuple[CollectiveSummary, ...]:
    """Each operation of each group, the most costly first."""
    found = [_collective(group, facts) for group in tables.groups.values()]
    return tuple(sorted(found, key=lambda one: -((one.wait_ms or 0) + (one.transfer_ms or 0))))


def _collective(group: Group, facts: Facts) -> CollectiveSummary:
    name = facts.group_names.get(group.group, group.group)
    size = 2 if group.op == "p2p" else group.group_size
    wait_ms = queue_ms = transfer_ms = None
    each = group.timed_steps * max(1, size) * _MS
    if group.timed_steps:
        wait_ms, queue_ms, transfer_ms = (
            part / each for part in (group.wait, group.queue, group.transfer)
        )
    algbw = busbw = call_ms = with_wait = None
    factor = _BUS[group.op] * (size - 1) / size if group.op in _BUS and size else 1.0
    whole = group.wait + group.queue + group.transfer
    if group.timed_spans and whole > 0:
        call_ms = whole / group.timed_spans / _MS
        if group.complete and group.bytes / group.complete >= _SMALL:
            with_wait = group.bytes / group.complete / (whole / group.timed_spans)
    if group.timed_spans and group.complete and group.transfer > 0 and not group.sent_before:
        nbytes = group.bytes / group.complete
        if nbytes >= _SMALL:
            algbw = nbytes / (group.transfer / group.timed_spans)
            busbw = algbw * factor
    return CollectiveSummary(
        group.op, name, size, group.calls, int(group.bytes), wait_ms, queue_ms, transfer_ms,
        algbw_gbs=algbw, busbw_gbs=busbw, call_ms=call_ms, algbw_with_wait_gbs=with_wait,
        busbw_with_wait_gbs=with_wait * factor if with_wait is not None else None,
    )  # fmt: skip
