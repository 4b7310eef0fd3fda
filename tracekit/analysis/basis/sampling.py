"""Runs that look inside of a step only now and then: what rests on the inside rests on those."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import Tables
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = ["looked_into"]


def looked_into(
    engine: Engine, attempt: int, ranks: Sequence[int], tables: Tables, steps: Steps
) -> Steps:
    """The steps whose inside is known on all ranks, where windows were sampled; else all steps.

    Of the other steps nothing is known but their times: they would thin out every share.
    """
    inside = {rank: np.zeros(len(tables.labels), bool) for rank in ranks}
    some = False
    for rank, first, last in _windows(engine, attempt):
        if rank in inside:
            inside[rank] |= (tables.labels >= first) & (tables.labels <= last)
            some = True
    if not some:
        return steps
    known: npt.NDArray[np.bool_] = np.all(list(inside.values()), axis=0)
    used = steps.used[known[steps.used]]
    return replace(steps, used=used, warm=steps.warm[known[steps.warm]]) if len(used) else steps


def _windows(engine: Engine, attempt: int) -> Iterator[tuple[int, int, int]]:
    """Rank, first and last step of each window; what has another form is passed over."""
    for row in engine.sql(query("sampled", attempt=attempt)).to_pylist():
        told: Mapping[str, str] = dict(row["attributes"] or ())
        try:
            first, last = (int(json.loads(told[name])) for name in ("first_step", "last_step"))
        except (KeyError, TypeError, ValueError):
            continue
        yield row["rank"], first, last
