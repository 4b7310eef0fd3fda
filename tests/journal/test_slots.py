"""Sets of slots behave as sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.journal.slots import clip, count, merge

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)))


def members(runs: list[tuple[int, int]]) -> set[int]:
    return {slot for first, end in runs for slot in range(first, end)}


@given(RUNS)
def test_merged_runs_hold_the_same_slots_in_order_and_apart(runs: list[tuple[int, int]]) -> None:
    merged = merge(runs)
    assert members(merged) == members(runs)
    assert count(merged) == len(members(runs))
    ends = [end for run in merged for end in run]
    assert ends == sorted(set(ends))


@given(RUNS, st.integers(0, 60), st.integers(0, 60))
def test_clipped_runs_hold_the_slots_inside(
    runs: list[tuple[int, int]], first: int, end: int
) -> None:
    inside = members(runs) & set(range(first, end))
    assert members(clip(merge(runs), first, end)) == inside
