"""Who is named, for what, and who must never be."""

from __future__ import annotations

import pytest

from tracekit.analysis import Analysis, Options, analyze
from tracekit.findings import Severity
from tracekit.testing import RunBuilder

PHASES = ("data", "forward", "backward", "optimizer")
USUAL = {"data": 2.0, "forward": 10.0, "backward": 20.0, "optimizer": 3.0}


def verdict(run: RunBuilder, options: Options | None = None) -> Analysis:
    with run.engine() as engine:
        return analyze(engine, options=options)


def named(analysis: Analysis) -> list[tuple[int, str, str]]:
    return [(one.rank, one.kind, one.cause) for one in analysis.stragglers]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("rank", [0, 2, 3])
@pytest.mark.parametrize("shape", ["plain", "batchnorm", "buckets"])
def test_a_slow_rank_is_named_with_its_phase(phase: str, rank: int, shape: str) -> None:
    run = RunBuilder(jitter=0.1, batchnorm=shape == "batchnorm", buckets=4 * (shape == "buckets"))
    run.steps(60, **{phase: {rank: USUAL[phase] + 15}})
    analysis = verdict(run)
    assert named(analysis) == [(rank, "rank", phase)]
    (straggler,) = analysis.stragglers
    assert straggler.p is not None
    assert straggler.p < 0.01
    assert straggler.slowdown == pytest.approx(15 / analysis.step_ms.median, abs=0.06)  # type: ignore[union-attr]
    assert analysis.symptom == "slow"


def test_a_rank_behind_a_late_one_in_the_broadcast_s_tree_is_innocent() -> None:
    """Rank 2 sends the buffers on to rank 3: late together, they reach the all-reduce together."""
    run = RunBuilder(batchnorm=True, jitter=0.05)
    run.steps(60, data={2: 22})
    analysis = verdict(run)
    ranks = {rank.rank: rank for rank in analysis.ranks}
    assert ranks[3].lateness_ms == pytest.approx(ranks[2].lateness_ms, abs=3)
    assert named(analysis) == [(2, "rank", "data")]
    assert ranks[3].imposed_wait_ms == pytest.approx(0, abs=1)
    assert ranks[2].imposed_wait_ms == pytest.approx(20, abs=2)


def test_a_late_root_is_named_though_all_reach_the_all_reduce_together() -> None:
    run = RunBuilder(batchnorm=True, jitter=0.05)
    run.steps(60, data={0: 22})
    analysis = verdict(run)
    assert named(analysis) == [(0, "rank", "data")]
    assert analysis.stragglers[0].imposed_wait_ms == pytest.approx(20, abs=2)


@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_healthy_run_has_no_straggler(batchnorm: bool, seed: int) -> None:
    run = RunBuilder(jitter=0.5, batchnorm=batchnorm, seed=seed)
    run.steps(60)
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert not [f for f in analysis.findings if f.severity is Severity.CRITICAL]


def test_the_mean_rule_is_silent_where_the_peer_rule_says_a_fifth_of_the_step() -> None:
    run = RunBuilder(data=0, optimizer=0, forward=400, backward=0, transfer=0)
    run.steps(60, forward={3: 500})
    (straggler,) = verdict(run).stragglers
    assert (straggler.rank, straggler.rules) == (3, ("peer",))
    assert straggler.slowdown == pytest.approx(0.2, abs=0.001)


def test_four_times_the_work_is_named_by_both_rules_even_in_four_steps() -> None:
    run = RunBuilder(data=0, optimizer=0, forward=400, backward=0, transfer=0)
    run.steps(4, forward={3: 1600})
    analysis = verdict(run)
    (straggler,) = analysis.stragglers
    assert (straggler.rank, straggler.rules) == (3, ("peer", "mean"))
    assert straggler.certainty == "cannot_tell"
    (finding,) = [f for f in analysis.findings if f.id == "straggler.rank"]
    assert finding.severity is Severity.WARNING
    assert "too few" in finding.title


def test_two_slow_ranks_are_both_named() -> None:
    run = RunBuilder(world_size=8, jitter=0.02)
    for step in range(80):
        run.step(forward={2: 20 + 10 * (step % 2), 5: 30 - 10 * (step % 2)})
    # each is last in every other step: no rank keeps the others waiting step after step
    assert {one.kind for one in verdict(run).stragglers} <= {"intermittent"}
    run = RunBuilder(world_size=8, jitter=0.02)
    run.steps(80, forward={2: 30, 5: 45})
    assert named(verdict(run)) == [(5, "rank", "forward")]


@pytest.mark.parametrize("every", [5, 10])
@pytest.mark.parametrize("phase", ["gc", "checkpoint"])
@pytest.mark.parametrize("batchnorm", [False, True])
def test_a_pause_now_and_then_is_intermittent(every: int, phase: str, batchnorm: bool) -> None:
    run = RunBuilder(jitter=0.2, batchnorm=batchnorm)
    for step in range(60):
        run.step(**{phase: {1: 40.0 if step % every == 0 else 0.0}})
    analysis = verdict(run)
    assert named(analysis) == [(1, "intermittent", phase)]
    assert "straggler.intermittent" in [finding.id for finding in analysis.findings]


def test_a_pause_that_all_ranks_take_together_is_nobody_s() -> None:
    run = RunBuilder(jitter=0.1)
    for step in range(60):
        run.step(gc=40.0 if step % 5 == 0 else 0.0)
    assert verdict(run).stragglers == ()


def test_a_cause_that_no_phase_explains_is_unknown() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(60, forward={2: 18}, backward={2: 28})
    assert named(verdict(run)) == [(2, "rank", "unknown")]


def test_what_a_rank_suffers_in_half_of_its_steps_does_not_hide_its_steady_fault() -> None:
    """The rank that comes last meets the others on its cores, now and then."""
    run = RunBuilder(jitter=0.05)
    for step in range(60):
        run.steps(1, data={2: 22.0}, forward={2: 10.0 + (10.0 if step % 2 else 0.0)})
    assert named(verdict(run)) == [(2, "rank", "data")]


def test_time_between_the_phases_is_a_cause_too() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(60, other={2: 15.0})
    assert named(verdict(run)) == [(2, "rank", "other")]


def test_uneven_batches_are_no_rank_s_fault() -> None:
    run = RunBuilder()
    lengths = run.random
    for _ in range(60):
        size = [lengths.uniform(0.6, 1.6) for _ in range(4)]
        run.step(
            forward={r: 10 * s for r, s in enumerate(size)},
            backward={r: 20 * s for r, s in enumerate(size)},
        )
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert "straggler.data_imbalance" in [finding.id for finding in analysis.findings]


def test_ranks_of_several_clocks_are_not_judged() -> None:
    run = RunBuilder(hosts=("a", "b"))
    run.steps(60, forward={2: 25})
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert not analysis.clock.aligned
    assert analysis.questions.lagging.startswith("cannot tell")  # type: ignore[union-attr]
    assert "clock.unaligned" in [finding.id for finding in analysis.findings]


def test_no_lateness_below_the_clock_s_error_is_called() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(60, forward={2: 18})
    assert named(verdict(run)) == [(2, "rank", "forward")]
    for fact in run.facts:
        if fact["name"] == "clock":
            fact["value"] = '{"domain": "a", "error_us": 20000}'
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert analysis.clock.error_us == 20000


def test_ranks_that_talk_in_several_kinds_of_groups_are_not_judged() -> None:
    run = RunBuilder()
    run.steps(60, forward={2: 25})
    pair = "pair-of-0-and-1"
    run.fact("group", {"id": pair, "name": "1", "ranks": [0, 1]}, 0)
    begin = run.spans[0]["start_ns"] + 1_000_000
    for rank in (0, 1):
        run.collective(rank, "all_gather", 1, begin, begin + 10, group=pair, group_size=2, step=0)
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert "roles" in str(analysis.questions.lagging)


def test_without_collectives_only_the_mean_rule_speaks() -> None:
    run = RunBuilder()
    for step in range(30):
        for rank in range(4):
            begin = run.now[rank]
            run.now[rank] += 40_000_000 if rank == 3 else 10_000_000
            run.span(rank, "step", begin, run.now[rank], "train_step", step)
    (straggler,) = verdict(run).stragglers
    assert (straggler.rank, straggler.rules, straggler.cause) == (3, ("mean",), "other")
    assert straggler.certainty == "cannot_tell"


def test_what_if_tells_what_is_won_by_mending_the_slow_rank() -> None:
    run = RunBuilder()
    run.steps(40, forward={2: 30})
    what_if = verdict(run).what_if
    assert what_if is not None
    assert what_if.slowdown > 1.3
    assert [(mended.rank, mended.slowdown) for mended in what_if.without] == [(2, 1.0)]


def test_the_last_attempt_is_analyzed() -> None:
    run = RunBuilder()
    run.steps(60, forward={2: 25})
    again = RunBuilder(attempt=1)
    again.steps(60, forward={1: 25})
    run.spans += again.spans
    run.facts += again.facts
    analysis = verdict(run)
    assert named(analysis) == [(1, "rank", "forward")]
    assert (analysis.run.attempt, analysis.run.attempts) == (1, 2)


def test_a_range_of_steps_may_be_chosen() -> None:
    run = RunBuilder()
    run.steps(60, forward={2: 25})
    run.steps(60, forward={1: 25})
    first = verdict(run, Options(last_step=59))
    second = verdict(run, Options(first_step=60))
    assert named(first) == [(2, "rank", "forward")]
    assert named(second) == [(1, "rank", "forward")]
    assert first.run.steps == second.run.steps == 60
