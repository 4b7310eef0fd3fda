"""Saves that some ranks are in and others never enter."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.analysis.telling import verdict
from tracekit.analysis import Analysis
from tracekit.findings import Certainty
from tracekit.testing import RunBuilder

SAVE = "checkpoint.save"


def saving(
    inside: Collection[int],
    history: Collection[int] = (),
    world_size: int = 3,
    seconds: float = 60.0,
    working: bool = False,
    state: str = "running",
) -> RunBuilder:
    """Some ranks are in a save, the others in a step whose collectives nobody saw."""
    run = RunBuilder(world_size=world_size, jitter=0.05)
    for _ in range(30):
        step = run.next_step
        run.step()
        for rank in history if step % 10 == 9 else ():
            run.span(rank, "checkpoint", run.now[rank], run.now[rank] + 1_000_000, SAVE, step)
    run.spans = [one for one in run.spans if one["kind"] != "comm"]
    end = max(run.now) + round(seconds * 1e9)
    for rank in range(world_size):
        if rank in inside:
            run.span(rank, "checkpoint", run.now[rank], end, SAVE, 30, is_open=True)
        elif working:
            run.span(rank, "forward", end - 20_000_000, end - 10_000_000, "forward", 31)
        elif state == "running":
            run.span(rank, "step", run.now[rank], end, "train_step", 30, is_open=True)
        state_of = {"state": "running" if rank in inside else state}
        run.fact("end_state", state_of, rank, time_ns=None)
        run.fact("heartbeat", end, rank)
    return run


def told(analysis: Analysis) -> tuple[str, tuple[int, ...], Certainty]:
    finding = analysis.findings[0]
    return finding.id, finding.ranks, finding.certainty


def test_a_rank_that_took_part_before_and_does_not_now_never_came() -> None:
    analysis = verdict(saving([0, 2], history=range(3)))
    assert analysis.symptom == "hang"
    assert told(analysis) == ("hang.missing_rank", (1,), Certainty.PROVEN)
    assert "never entered checkpoint.save, in which ranks 0, 2 wait" in analysis.findings[0].title
    assert "rank 1" in str(analysis.questions.lagging)


def test_a_rank_that_skips_the_save_and_waits_in_the_next_step_is_named() -> None:
    """Rank 1 is in the step that follows: it and the ranks in the save wait for each other."""
    run = saving([0, 2], history=range(3))
    run.collective(1, "all_reduce", 31, run.now[1], run.now[1] + 60_000_000_000, is_open=True)
    assert told(verdict(run)) == ("hang.missing_rank", (1,), Certainty.PROVEN)


def test_a_rank_that_is_done_with_the_save_waits_for_the_slow_one() -> None:
    run = saving([0, 2], history=range(3))
    run.span(1, "checkpoint", run.now[1] - 2_000_000, run.now[1] - 1_000_000, SAVE, 30)
    run.collective(1, "all_reduce", 31, run.now[1], run.now[1] + 60_000_000_000, is_open=True)
    id_, ranks, _ = told(verdict(run))
    assert (id_, ranks) == ("hang.busy_rank", (0,))


def test_most_ranks_in_a_first_save_wait_for_the_one_that_is_not() -> None:
    assert told(verdict(saving([0, 2]))) == ("hang.missing_rank", (1,), Certainty.LIKELY)


def test_a_rank_that_always_saves_alone_is_what_the_others_wait_for() -> None:
    analysis = verdict(saving([0], history=[0]))
    assert told(analysis) == ("hang.busy_rank", (0,), Certainty.LIKELY)
    assert analysis.findings[0].evidence["waiting_ranks"] == [1, 2]


@pytest.mark.parametrize("world_size", [2, 3])
def test_of_a_first_save_with_few_ranks_in_it_nothing_tells_who_is_wrong(world_size: int) -> None:
    analysis = verdict(saving([0], world_size=world_size))
    id_, _, certainty = told(analysis)
    assert (id_, certainty) == ("hang.missing_rank", Certainty.CANNOT_TELL)
    assert "either these should have come, or the save is slow" in analysis.findings[0].title


def test_a_short_save_is_no_hang() -> None:
    assert verdict(saving([0, 2], history=range(3), seconds=5)).symptom == "healthy"


def test_a_save_that_takes_as_long_as_the_ones_before_is_no_hang() -> None:
    run = saving([0], history=[0], seconds=60)
    for span in run.spans:
        if span["kind"] == "checkpoint" and not span["is_open"]:
            span["duration_ns"] = 50_000_000_000
            break
    assert verdict(run).symptom == "healthy"


def test_ranks_that_go_on_meanwhile_wait_for_nobody() -> None:
    assert verdict(saving([0], history=[0], working=True)).symptom == "healthy"


def test_a_last_save_of_one_rank_after_all_others_ended_is_no_hang() -> None:
    assert verdict(saving([0], state="clean")).symptom == "healthy"


def test_all_ranks_in_the_save_name_nobody() -> None:
    assert verdict(saving([0, 1, 2], history=range(3))).symptom == "healthy"
