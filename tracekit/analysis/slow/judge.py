"""Who makes the others wait: units of ranks first, then ranks, and pipeline stages beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import Tables
from tracekit.analysis.options import Options
from tracekit.analysis.roles.peers import Peers, Sets
from tracekit.analysis.slow.court import Array, Court, Suspect
from tracekit.analysis.slow.stages import StageVerdict, judge_stages

__all__ = ["Judgement", "Suspect", "judge"]

_MOST = 0.5
"""Part of what a unit imposes that a rank in it must have worked longer to be the one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that is said about ranks."""

    suspects: tuple[Suspect, ...]
    imposed: Array
    """Imposed wait of steps × ranks."""
    own: Array
    ratio: Array
    imbalance: float | None
    """Correlation of forward and backward where every rank's work varies on its own."""
    stage: StageVerdict | None = None
    """The pipeline stages that have more work than the others."""


def judge(
    tables: Tables, steps: Steps, peers: Peers, options: Options, error_ns: float = 0.0
) -> Judgement | None:
    """Judge the ranks; None where there is nothing to judge by.

    Nobody is late by less than ``error_ns``, by which their clocks may differ.
    """
    if not len(steps.used) or len(tables.ranks) < 2:
        return None
    own = _own(tables)
    imposed = tables.imposed.astype(np.float64)
    if tables.excess is not None:
        imposed = np.minimum(imposed, tables.excess)
    charged = np.where(imposed > error_ns, imposed, 0.0)
    court = Court(tables, steps, peers.sets, options, own, charged)
    suspects: list[Suspect] = []
    if not peers.unknown:
        suspects = _units(tables, steps, peers, options, error_ns, court)
        court.guilty |= {tables.ranks.index(rank) for one in suspects for rank in one.ranks}
        suspects += [*court.persistent(), *court.intermittent()]
    stage = judge_stages(tables, steps, peers.stages, own, options)
    uneven = not suspects and stage is None and not peers.unknown
    return Judgement(
        tuple(suspects), imposed, own, court.ratio, court.imbalance() if uneven else None, stage
    )


def _own(tables: Tables) -> Array:
    return (tables.values["wall"] - tables.values["blocked"]).astype(np.float64)


def _units(
    tables: Tables, steps: Steps, peers: Peers, options: Options, error_ns: float, ranks: Court
) -> list[Suspect]:
    """Judge ranks that wait for each other in every layer as one, then look into the unit.

    One of them that is late makes all of them late for everybody else.
    """
    if not peers.units or tables.unit_excess is None or tables.unit_ahead is None:
        return []
    place = {rank: i for i, rank in enumerate(tables.ranks)}
    columns = [[place[rank] for rank in unit] for unit in peers.units]
    outside = np.minimum(tables.imposed - tables.inside, tables.unit_excess).astype(np.float64)
    imposed = np.stack([outside[:, unit].max(axis=1) for unit in columns], axis=1)
    units = replace(
        tables,
        ranks=tuple(range(len(columns))),
        values={
            name: np.stack([values[:, unit].mean(axis=1) for unit in columns], axis=1)
            for name, values in tables.values.items()
        },
        ahead=np.stack([tables.unit_ahead[:, unit].mean(axis=1) for unit in columns], axis=1),
    )
    court = Court(
        units,
        steps,
        _sets_of_units(peers),
        options,
        _own(units),
        np.where(imposed > error_ns, imposed, 0.0),
    )
    found = []
    for suspect in [*court.persistent(), *court.intermittent()]:
        inside = columns[suspect.rank]
        longer = _longer(tables, suspect, inside)
        late = [
            i for i in inside if longer[i] >= _MOST * imposed[suspect.places, suspect.rank].mean()
        ]
        if not late or len(late) == len(inside):
            found.append(replace(suspect, ranks=peers.units[suspect.rank]))
            continue
        one = ranks.suspect(
            late[0], suspect.kind, suspect.rules, suspect.share, suspect.p, suspect.places,
            suspect.confirmed,
        )  # fmt: skip
        found.append(
            replace(one, imposed=suspect.imposed, ranks=tuple(tables.ranks[i] for i in late))
        )
    return found


def _longer(tables: Tables, suspect: Suspect, inside: list[int]) -> dict[int, float]:
    """How much longer than its peers each rank of a unit itself worked in the late steps."""
    if tables.excess is None:
        return dict.fromkeys(inside, 0.0)
    return {i: float(tables.excess[suspect.places, i].mean()) for i in inside}


def _sets_of_units(peers: Peers) -> Sets:
    """The units whose ranks are peers."""
    unit_of = {rank: number for number, unit in enumerate(peers.units) for rank in unit}
    return tuple(sorted({tuple(sorted({unit_of[rank] for rank in ranks})) for ranks in peers.sets}))
