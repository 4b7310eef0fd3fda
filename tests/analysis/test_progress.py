"""Whether a rank that others wait for gets ahead is told by what it counts, not by its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.testing import RunBuilder

MINUTE = 60 * 10**9
STAY = ("/job/restore.py:12 read",)
ELSE = ("/job/restore.py:19 unpack",)


def restoring(
    counts: Callable[[int], float | None], stacks: Sequence[Sequence[str]] = (STAY, STAY)
) -> RunBuilder:
    """11 ranks restored in 22 minutes and wait; the last one reads for four hours, and counts."""
    run = RunBuilder(world_size=12)
    ends = 240 * MINUTE
    begin = run.now[0]
    for rank in range(11):
        run.span(rank, "io", begin, begin + 22 * MINUTE, "restore.read")
        run.collective(rank, "barrier", 1, begin + 22 * MINUTE, begin + ends, is_open=True)
    run.span(11, "io", begin, begin + ends, "restore.read", is_open=True)
    for rank in range(12):
        run.fact("heartbeat", begin + ends, rank)
        run.fact("end_state", {"state": "running"}, rank)
    for look, frames in enumerate(stacks):
        run._stack(11, frames, "R", begin + ends, look)
    for minute in range(1, 240):
        run.now[11] = begin + minute * MINUTE
        value = counts(minute)
        if value is not None:
            run.event(11, "restore.bytes", value)
    run.now = [begin + ends] * 12
    return run


def verdict(run: RunBuilder) -> Analysis:
    with run.engine() as engine:
        return analyze(engine)


@pytest.mark.parametrize("stacks", [(STAY, STAY), (STAY, ELSE), ()])
def test_a_rank_whose_counter_rises_is_slow_and_not_dead(stacks: Sequence[Sequence[str]]) -> None:
    finding = verdict(restoring(lambda minute: 1e6 * minute, stacks)).findings[0]
    assert (finding.id, finding.ranks) == ("hang.busy_rank", (11,))
    assert "11 times as long as others took (1320 s)" in finding.title
    assert "restore.bytes rose to 239,000,000 60 s ago" in finding.title
    assert finding.evidence["state"] == "slow"
    assert len(finding.evidence["waiting_ranks"]) == 11


@pytest.mark.parametrize("stacks", [(STAY, STAY), (STAY, ELSE), ()])
def test_a_rank_whose_counter_stands_is_stuck_though_it_runs(
    stacks: Sequence[Sequence[str]],
) -> None:
    finding = verdict(restoring(lambda minute: 512.0, stacks)).findings[0]
    assert (finding.id, finding.ranks) == ("hang.missing_rank", (11,))
    assert "restore.bytes stands at 512 since 14340 s" in finding.title
    assert finding.evidence["state"] == "stuck"


@pytest.mark.parametrize(
    "counts",
    [
        lambda minute: None,  # nothing is counted
        lambda minute: 3.0 if minute == 5 else None,  # told once
        lambda minute: float(minute % 7),  # goes up and down: no counter
    ],
)
def test_what_is_no_counter_tells_nothing(counts: Callable[[int], float | None]) -> None:
    finding = verdict(restoring(counts)).findings[0]
    assert finding.ranks == (11,)
    assert "counter" not in finding.evidence
    assert "restore.bytes" not in finding.title


def test_nobody_is_said_to_take_longer_than_others_where_few_have_ended_it() -> None:
    run = restoring(lambda minute: 1e6 * minute)
    for span in run.spans:
        if span["name"] == "restore.read" and span["rank"] > 0 and not span["is_open"]:
            span["name"] = "restore.other"
    assert "times as long" not in verdict(run).findings[0].title


def behind(counts: Sequence[int]) -> RunBuilder:
    """Rank 2 stays in its forward; each rank told how many micro-batches it ran."""
    run = RunBuilder(world_size=len(counts), jitter=0.05)
    run.steps(30)
    for rank, count in enumerate(counts):
        for number in range(1, count + 1):
            run.event(rank, "micro_batches", number, time_ns=run.now[rank] + number)
        run.event(rank, "lr", 0.1)
    run.hang(2)
    return run


def test_a_rank_that_ran_one_micro_batch_fewer_than_those_who_wait_is_told_with_it() -> None:
    finding = verdict(behind([200, 200, 199, 200])).findings[0]
    assert (finding.id, finding.ranks) == ("hang.missing_rank", (2,))
    assert "its micro_batches is 199 where that of the others is 200" in finding.title
    assert finding.evidence["counted_fewer"] == {"micro_batches": [199, 200]}
    assert finding.evidence["waiting_ranks"] == [0, 1, 3]


@pytest.mark.parametrize("counts", [[200] * 4, [200, 198, 199, 200], [199, 199, 200, 199]])
def test_counts_that_say_nothing_of_who_is_behind_are_not_told(counts: list[int]) -> None:
    finding = verdict(behind(counts)).findings[0]
    assert finding.ranks == (2,)
    assert finding.evidence["counted_fewer"] == {}
    assert "micro_batches" not in finding.title


@pytest.mark.parametrize("name", ["lr", "loss_scale", "memory"])
def test_what_is_measured_is_no_count_of_work(name: str) -> None:
    """A rank that is a step behind has an older rate, and that says nothing."""
    run = behind([200, 200, 199, 200])
    for event in run.events:
        if event["name"] == "micro_batches":
            event["name"] = name
    assert verdict(run).findings[0].evidence["counted_fewer"] == {}
