"""What a profile may lack where it begins and ends: calls that the profiler cut off.

TensorFlow notes a collective when its last callback has returned, on a thread of its own, and the
step may have returned before that: a profile that ends with a step may lack that step's last call.
The other workers' profiles have it, and that says nothing of the job. Such a call keeps its time
and loses its number, so that nobody waits for the member that was not noted.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.adapters.xplane._steps import Step

__all__ = ["without_cut_calls"]

_KEY = ("step", "collective_group", "collective_op", "collective_seq")


def without_cut_calls(
    tables: Sequence[pa.Table], steps: Sequence[Sequence[Step]]
) -> list[pa.Table]:
    """The rows of profiles of several workers, without the numbers of calls that may be cut off.

    ``steps`` are those of each profile. A call is cut off when a profile of whose steps its step is
    the first or the last one lacks it, while another profile of that step has it.
    """
    edges = [{own[0].number, own[-1].number} if own else set() for own in steps]
    calls = [_calls(rows, set().union(*edges)) for rows in tables]
    seen: dict[object, set[tuple[object, ...]]] = {}
    for key in set().union(*calls):
        seen.setdefault(key[0], set()).add(key)
    cut: set[tuple[object, ...]] = set()
    for have, own in zip(calls, edges, strict=True):
        for step in own:
            cut |= seen.get(step, set()) - have
    return [
        _unnumbered(rows, cut) if cut & have else rows
        for rows, have in zip(tables, calls, strict=True)
    ]


def _calls(rows: pa.Table, steps: set[int]) -> set[tuple[object, ...]]:
    """The numbered calls of these steps."""
    chosen = pc.and_(
        pc.is_in(rows["step"], pa.array(steps, pa.int64())), pc.is_valid(rows["collective_seq"])
    )
    found = rows.filter(chosen)
    return set(zip(*(found[name].to_pylist() for name in _KEY), strict=True))


def _unnumbered(rows: pa.Table, cut: set[tuple[object, ...]]) -> pa.Table:
    keys = zip(*(rows[name].to_pylist() for name in _KEY), strict=True)
    numbers = [None if key in cut else key[-1] for key in keys]
    place = rows.schema.get_field_index("collective_seq")
    return rows.set_column(place, rows.schema.field(place), pa.array(numbers, pa.int64()))
