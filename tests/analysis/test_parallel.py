"""Who is named where ranks do different work: units, stages, and what follows without roles."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.findings import Severity
from tracekit.model import group_id
from tracekit.testing import ParallelBuilder

TOLD = pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
LAYOUTS = {
    "dp and tp": {"dp": 2, "tp": 2},
    "dp and tp, with a norm": {"dp": 2, "tp": 2, "clip": True},
    "pp and dp": {"pp": 2, "dp": 2, "micro": 4, "clip": True},
    "pp alone": {"pp": 2, "micro": 3},
    "pp, dp and tp": {"pp": 2, "dp": 2, "tp": 2, "micro": 2, "clip": True},
    "sharded": {"dp": 4, "sharded": True},
    "sharded and waited for": {"dp": 4, "sharded": True, "waits": True},
}


def verdict(run: ParallelBuilder) -> Analysis:
    with run.engine() as engine:
        return analyze(engine)


def named(analysis: Analysis) -> list[tuple[tuple[int, ...], str, str]]:
    return [(one.ranks, one.kind, one.cause) for one in analysis.stragglers]


def accused(analysis: Analysis) -> list[str]:
    return [f.id for f in analysis.findings if f.id.startswith("straggler.")]


@TOLD
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_healthy_run_names_nobody(layout: dict[str, object], told: bool) -> None:
    run = ParallelBuilder(**layout, told=told, jitter=0.2)  # type: ignore[arg-type]
    run.steps(60)
    analysis = verdict(run)
    assert accused(analysis) == []
    assert analysis.stragglers == ()
    assert not [f for f in analysis.findings if f.severity is Severity.CRITICAL]
    assert "nobody" in str(analysis.questions.lagging)


@TOLD
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_slow_rank_of_a_unit_is_named_and_the_unit_is_innocent(
    rank: int, phase: str, clip: bool, told: bool
) -> None:
    run = ParallelBuilder(dp=2, tp=2, told=told, clip=clip, jitter=0.1)
    run.steps(60, **{phase: {rank: run.usual[phase] + 15}})
    analysis = verdict(run)
    assert named(analysis) == [((rank,), "rank", phase)]
    (straggler,) = analysis.stragglers
    assert straggler.imposed_wait_ms == pytest.approx(15, abs=2)
    assert straggler.p is not None
    assert straggler.p < 0.01


@TOLD
def test_a_slow_unit_is_named_as_a_whole(told: bool) -> None:
    run = ParallelBuilder(dp=2, tp=2, told=told, jitter=0.1)
    run.steps(60, forward={2: 25, 3: 25})
    analysis = verdict(run)
    assert named(analysis) == [((2, 3), "rank", "forward")]
    (finding,) = [f for f in analysis.findings if f.id == "straggler.rank"]
    assert finding.ranks == (2, 3)
    assert "ranks 2-3, which wait for each other in every layer" in finding.title


@TOLD
def test_a_unit_whose_ranks_take_turns_in_being_late_is_late(told: bool) -> None:
    run = ParallelBuilder(dp=2, tp=2, told=told, jitter=0.05)
    for step in range(60):
        run.step(forward={2 + step % 2: 25})
    assert named(verdict(run)) == [((2, 3), "rank", "forward")]


@TOLD
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_heavy_stage_is_an_imbalance_of_stages_and_no_rank_is_bad(
    phase: str, tp: int, stage: int, told: bool
) -> None:
    run = ParallelBuilder(pp=2, dp=2, tp=tp, micro=4, told=told, clip=True, jitter=0.1)
    run.steps(60, **{phase: dict.fromkeys(run.stage(stage), run.usual[phase] + 14)})
    analysis = verdict(run)
    assert named(analysis) == [(run.stage(stage), "stage", phase)]
    (finding,) = [f for f in analysis.findings if f.id.startswith("straggler.")]
    assert finding.id == "straggler.stage"
    assert finding.ranks == run.stage(stage)
    assert finding.severity is Severity.CRITICAL
    assert finding.imposed_wait_ms == pytest.approx(4 * 14, abs=5)
    assert f"stage {stage} of the pipeline" in str(analysis.questions.lagging)
    assert f"stage {stage} of 2" in finding.title


@TOLD
def test_the_heavy_one_of_four_single_stages_is_named(told: bool) -> None:
    run = ParallelBuilder(pp=4, micro=4, told=told, jitter=0.1)
    run.steps(60, forward={2: 20})
    assert named(verdict(run)) == [((2,), "stage", "forward")]


def test_a_light_stage_makes_no_other_one_heavy() -> None:
    run = ParallelBuilder(pp=4, micro=4, jitter=0.1)
    run.steps(60, forward={1: 2}, backward={1: 5})
    assert accused(verdict(run)) == []


@TOLD
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_an_odd_rank_in_a_stage_is_a_rank(rank: int, told: bool) -> None:
    run = ParallelBuilder(pp=2, dp=2, micro=4, told=told, clip=True, jitter=0.1)
    run.steps(60, forward={rank: 18})
    analysis = verdict(run)
    assert named(analysis) == [((rank,), "rank", "forward")]
    assert analysis.stragglers[0].imposed_wait_ms == pytest.approx(4 * 8, abs=5)


@TOLD
@pytest.mark.parametrize("phase", ["data", "optimizer"])
@pytest.mark.parametrize("rank", [1, 2])
def test_an_odd_rank_s_other_phases_are_its_own_too(rank: int, phase: str, told: bool) -> None:
    run = ParallelBuilder(pp=2, dp=2, micro=4, told=told, clip=True, jitter=0.05)
    run.steps(60, **{phase: {rank: run.usual[phase] + 40}})
    assert named(verdict(run)) == [((rank,), "rank", phase)]


@TOLD
@pytest.mark.parametrize("phase", ["gc", "checkpoint"])
@pytest.mark.parametrize("layout", ["dp and tp", "pp and dp"])
def test_a_pause_now_and_then_is_one_rank_s(layout: str, phase: str, told: bool) -> None:
    run = ParallelBuilder(**LAYOUTS[layout], told=told, jitter=0.1)  # type: ignore[arg-type]
    for step in range(60):
        run.step(**{phase: {1: 120.0 if step % 6 == 0 else 0.0}})
    assert named(verdict(run)) == [((1,), "intermittent", phase)]


@TOLD
def test_a_heavy_stage_and_an_odd_rank_in_the_other_are_both_named(told: bool) -> None:
    run = ParallelBuilder(pp=2, dp=2, tp=2, micro=4, told=told, clip=True, jitter=0.05)
    run.steps(60, forward={**dict.fromkeys(run.stage(1), 30), 2: 25})
    assert named(verdict(run)) == [(run.stage(1), "stage", "forward"), ((2,), "rank", "forward")]


@TOLD
def test_a_rank_of_the_only_unit_is_compared_with_the_others_of_its_layers(told: bool) -> None:
    run = ParallelBuilder(tp=4, told=told, jitter=0.1)
    run.steps(60, backward={1: 35})
    assert named(verdict(run)) == [((1,), "rank", "backward")]


@TOLD
@pytest.mark.parametrize("waits", [False, True], ids=["blocking", "waited for"])
def test_a_delay_before_each_of_twenty_gathers_is_the_rank_s_whole_loss(
    waits: bool, told: bool
) -> None:
    run = ParallelBuilder(
        dp=4, layers=10, sharded=True, waits=waits, told=told, forward=10, backward=20
    )
    run.steps(60, forward={2: 10 + 10 * 2}, backward={2: 20 + 10 * 2})
    analysis = verdict(run)
    assert [one.ranks for one in analysis.stragglers] == [(2,)]
    assert analysis.stragglers[0].imposed_wait_ms == pytest.approx(20 * 2, rel=0.05)
    assert analysis.stragglers[0].cause == "unknown"  # half of it in each phase


@TOLD
def test_what_only_looks_late_behind_a_late_rank_is_not_charged(told: bool) -> None:
    run = ParallelBuilder(pp=2, dp=2, micro=4, told=told, clip=True, jitter=0.05)
    run.steps(60, forward={0: 18})
    ranks = {rank.rank: rank for rank in verdict(run).ranks}
    assert ranks[0].imposed_wait_ms == pytest.approx(32, abs=4)
    for other in (1, 2, 3):
        assert ranks[other].imposed_wait_ms == pytest.approx(0, abs=2.5)


def test_a_ring_of_messages_is_no_pipeline() -> None:
    run = ParallelBuilder(dp=2)
    for step in range(40):
        begins = list(run.now)
        run.step(forward={1: 25})
        for rank in (0, 1):  # both send first, as around a ring
            start = begins[rank] + 3_000_000
            run.collective(rank, "send", step, start, start + 1000, peer_rank=1 - rank, step=step)
            run.collective(rank, "recv", step, start, start + 2000, peer_rank=1 - rank, step=step)
    for fact in run.facts:
        fact["name"] = fact["name"].replace("role", "was_role")
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert "roles" in str(analysis.questions.lagging)


def test_groups_that_send_from_a_root_may_be_stages_and_nobody_is_judged() -> None:
    """Old pipelines hand on activations by broadcasts in groups of two."""
    run = ParallelBuilder(dp=2, tp=2, told=False)
    run.steps(40, forward={1: 25})
    for span in run.spans:
        if span["kind"] == "comm" and span["collective_group"] not in (
            group_id((0, 2)), group_id((1, 3)),
        ):  # fmt: skip
            span["collective_op"] = span["name"] = "broadcast"
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert "straggler.stage" in [f.id for f in analysis.findings if f.certainty == "cannot_tell"]


def test_the_user_s_word_wins_over_the_mesh() -> None:
    run = ParallelBuilder(dp=2, tp=2)
    run.steps(60, forward={2: 25, 3: 25})
    for rank in range(4):
        run.fact("role", {"dp": 0, "pp": rank // 2, "tp": rank % 2, "source": "user"}, rank)
    assert named(verdict(run)) == [((2, 3), "stage", "forward")]


def test_roles_that_do_not_tell_ranks_apart_are_not_believed() -> None:
    """Replicas of a part of the world say nothing of what the other part does."""
    run = ParallelBuilder(pp=2, dp=2, micro=4, told=False)
    for rank in range(4):
        run.fact("role", {"dp": rank % 2, "source": "groups"}, rank)
    run.steps(60, forward=dict.fromkeys(run.stage(1), 20))
    assert named(verdict(run)) == [((2, 3), "stage", "forward")]


def test_a_call_that_is_waited_for_at_once_counts_as_one_that_blocks() -> None:
    numbers = []
    for waits in (False, True):
        run = ParallelBuilder(dp=4, sharded=True, waits=waits, jitter=0.3)
        run.steps(30, forward={1: 16})
        analysis = verdict(run)
        numbers.append((analysis.shares, analysis.collectives, analysis.ranks, named(analysis)))
    assert numbers[0] == numbers[1]


def test_a_call_that_is_over_before_it_is_waited_for_costs_nobody_anything() -> None:
    """Rank 1 sends late, but all others still work on something else."""
    run = ParallelBuilder(dp=4, layers=1)
    late, work = 8_000_000, 30_000_000
    for step in range(40):
        begins = list(run.now)
        for rank in range(4):
            called = begins[rank] + (late if rank == 1 else 0)
            over = begins[rank] + late + 1_000_000
            key: dict[str, Any] = {"group": run.group, "step": step}
            run.collective(rank, "all_gather", step, called, over, lane=f"group:{run.group}", **key)
            run.collective(
                rank, "all_gather", step, begins[rank] + work, begins[rank] + work, **key
            )
            run.spans[-1]["name"] = "wait"
            run.now[rank] += work
            run.span(rank, "forward", begins[rank], run.now[rank], step=step)
            run.span(rank, "step", begins[rank], run.now[rank], "train_step", step)
    analysis = verdict(run)
    assert analysis.stragglers == ()
    assert [rank.imposed_wait_ms for rank in analysis.ranks] == [0.0] * 4
    assert analysis.shares is not None
    assert analysis.shares.compute == pytest.approx(1.0)
