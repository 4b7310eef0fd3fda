"""A few steps that take many times the usual are told by themselves and change no mean."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.findings import Finding, Severity
from tracekit.testing import RunBuilder


def verdict(run: RunBuilder) -> Analysis:
    with run.engine() as engine:
        return analyze(engine)


def once(analysis: Analysis) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.id == "straggler.once"]


def with_steps(*huge: dict[str, Any], world_size: int = 2, **phases: Any) -> Analysis:
    """A run of sixty usual steps with these after the thirtieth."""
    run = RunBuilder(world_size=world_size, jitter=0.002)
    run.steps(30, **phases)
    for step in huge:
        run.step(**{**phases, **step})
    run.steps(30, **phases)
    return verdict(run)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_huge_step_is_told_with_the_rank_that_was_late_in_it(world_size: int) -> None:
    analysis = with_steps({"forward": {0: 8000.0}}, world_size=world_size)
    (finding,) = once(analysis)
    assert finding.title.startswith("step 30 took 8.0 s, ")
    assert finding.title.endswith("rank 0 kept the others waiting for 8.0 s, in its forward")
    assert (finding.ranks, finding.steps, finding.cause) == ((0,), (30, 30), "forward")
    assert finding.severity is Severity.INFO
    assert finding.lost_ms == pytest.approx(7990, abs=20)
    assert analysis.stragglers == ()
    assert analysis.symptom == "healthy"


def test_it_hides_no_rank_that_is_slow_in_all_others() -> None:
    slow: dict[str, Any] = {"forward": {1: 40.0}}
    without = with_steps(**slow)
    analysis = with_steps({"forward": {0: 8000.0, 1: 40.0}}, **slow)
    assert [one.rank for one in analysis.stragglers] == [1]
    assert [finding.ranks for finding in once(analysis)] == [(0,)]
    for mine, theirs in zip(analysis.ranks, without.ranks, strict=True):
        assert mine.mean_ratio == pytest.approx(theirs.mean_ratio, abs=0.02)
        assert mine.imposed_wait_ms == pytest.approx(theirs.imposed_wait_ms, abs=1)
    assert analysis.what_if is not None
    assert [one.rank for one in analysis.what_if.without] == [1]


def test_where_all_ranks_are_slow_in_it_nobody_is_named() -> None:
    (finding,) = once(with_steps({"data": 8000.0}))
    assert finding.ranks == ()
    assert finding.title.endswith("no rank alone kept the others waiting")


def test_several_are_told_together_by_the_longest() -> None:
    analysis = with_steps({"forward": {0: 3000.0}}, {"backward": {1: 9000.0}})
    (finding,) = once(analysis)
    assert finding.title.startswith(
        "2 steps took many times the usual, the longest, step 31, 9.0 s"
    )
    assert (finding.ranks, finding.steps, finding.cause) == ((1,), (30, 31), "backward")
    assert finding.evidence["steps"] == [30, 31]


def test_a_rank_that_is_late_again_and_again_is_told_only_as_that() -> None:
    analysis = with_steps(*[{"data": {1: 3000.0}}] * 6, world_size=4)
    assert [(one.rank, one.kind) for one in analysis.stragglers] == [(1, "intermittent")]
    assert once(analysis) == []


@pytest.mark.parametrize(
    "step",
    [{"forward": {0: 900.0}}, {"checkpoint": 8000.0}, {"checkpoint": {0: 8000.0}}],
    ids=["less than a second", "all save", "one saves"],
)
def test_a_short_pause_and_a_checkpoint_are_no_such_steps(step: dict[str, Any]) -> None:
    assert once(with_steps(step)) == []
