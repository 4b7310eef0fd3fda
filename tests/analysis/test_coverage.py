"""What the record lacks is said, and never taken for zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.analysis import Analysis, Options, analyze
from tracekit.dataset.coverage import Coverage, Duplicate, Elsewhere
from tracekit.findings import Finding
from tracekit.testing import RunBuilder
from tracekit.testing.builder import engine_of


def finding(analysis: Analysis, id_: str) -> Finding:
    return next(finding for finding in analysis.findings if finding.id == id_)


def test_missing_ranks_are_named_and_the_others_still_judged() -> None:
    run = RunBuilder(world_size=8, jitter=0.05)
    run.steps(60, forward={2: 30})
    with engine_of(run.without(5)) as engine:
        analysis = analyze(engine, Coverage(missing_ranks=(5,)))
    assert analysis.run.missing_ranks == (5,)
    assert finding(analysis, "coverage.partial").ranks == (5,)
    assert analysis.shares is not None
    assert analysis.shares.wait > 0.2  # the least it can have been
    assert [(one.rank, one.cause) for one in analysis.stragglers] == [(2, "forward")]


def test_journals_elsewhere_come_with_the_command_that_fetches_them() -> None:
    run = RunBuilder()
    run.steps(5)
    coverage = Coverage(elsewhere=(Elsewhere(0, 3, "node-9", "/scratch/j"),))
    with engine_of(run.without(3)) as engine:
        analysis = analyze(engine, coverage, where="runs/x")
    told = finding(analysis, "coverage.partial")
    assert told.advice == ("fetch the journals that lie on other hosts: tracekit collect runs/x",)
    assert analysis.coverage.elsewhere == {3: "node-9:/scratch/j"}


def test_files_and_spans_that_were_lost_are_counted() -> None:
    run = RunBuilder()
    run.steps(5)
    coverage = Coverage(files=9, skipped=((Path("a/part.parquet"), "cut"),), dropped_spans=7)
    with run.engine() as engine:
        analysis = analyze(engine, coverage)
    titles = [one.title for one in analysis.findings if one.id == "coverage.partial"]
    assert any("part.parquet: cut" in title for title in titles)
    assert any("7 spans" in title for title in titles)
    assert analysis.coverage.files == 9


def test_two_processes_of_one_rank_are_said() -> None:
    run = RunBuilder()
    run.steps(5)
    stems = ("rank-00001.aa-11", "rank-00001.aa-22")
    with run.engine() as engine:
        analysis = analyze(engine, Coverage(duplicate_ranks=(Duplicate(0, 1, stems),)))
    assert finding(analysis, "coverage.duplicate_rank").ranks == (1,)


@pytest.mark.parametrize("window", [3_000_000, 1])
def test_a_rank_that_counts_its_steps_otherwise_is_put_right(window: int) -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(60, forward={2: 25})
    for span in run.spans:
        if span["rank"] == 1 and span["step"] is not None:
            span["step"] += 3
    with run.engine() as engine:
        analysis = analyze(engine, options=Options(spans_per_window=window))
    shift = finding(analysis, "coverage.step_shift")
    assert (shift.ranks, shift.evidence["shift"]) == ((1,), 3)
    assert analysis.run.steps == 60
    assert [(one.rank, one.cause) for one in analysis.stragglers] == [(2, "forward")]


def test_a_loop_that_counts_its_steps_anew_in_every_epoch_is_counted_through() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(60, forward={2: 25})
    for span in run.spans:
        span["step"] %= 20
    with run.engine() as engine:
        analysis = analyze(engine)
    assert (analysis.run.steps, analysis.run.last_step) == (60, 19)
    assert [(one.rank, one.cause) for one in analysis.stragglers] == [(2, "forward")]
    assert analysis.step_ms is not None
    assert analysis.step_ms.median == pytest.approx(51, abs=1)


def test_steps_that_are_numbered_with_gaps_take_no_more_memory() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(40, forward={2: 25})
    for span in run.spans:
        span["step"] *= 10**9
    with run.engine() as engine:
        analysis = analyze(engine)
    assert (analysis.run.steps, analysis.run.last_step) == (40, 39 * 10**9)
    assert analysis.stragglers[0].rank == 2


def test_nothing_recorded_is_no_crash_of_the_analysis() -> None:
    with RunBuilder().engine() as engine:
        analysis = analyze(engine)
    assert (analysis.symptom, analysis.phase) == ("abnormal", "startup")
    assert finding(analysis, "coverage.partial").title == "nothing was recorded"


def test_one_rank_alone_has_shares_and_no_verdict() -> None:
    run = RunBuilder(world_size=1)
    run.steps(30)
    run.spans = [span for span in run.spans if span["kind"] != "comm"]
    with run.engine() as engine:
        analysis = analyze(engine)
    assert analysis.symptom == "healthy"
    assert analysis.stragglers == ()
    assert analysis.shares is not None
    assert analysis.shares.exposed_communication == 0


def test_spans_without_steps_are_said_not_to_be_judged() -> None:
    run = RunBuilder()
    for rank in range(4):
        run.span(rank, "user", run.now[rank], run.now[rank] + 10**9, "work")
    with run.engine() as engine:
        analysis = analyze(engine)
    assert analysis.step_ms is None
    assert str(analysis.questions.lagging).startswith("cannot tell")


def test_warm_up_steps_and_checkpoint_steps_leave_the_statistics() -> None:
    run = RunBuilder()
    run.step(forward=500)
    run.step(forward=200)
    for step in range(60):
        run.step(checkpoint=100.0 if step % 20 == 19 else 0.0)
    with run.engine() as engine:
        analysis = analyze(engine)
    assert analysis.run.warm_up_steps == 2
    assert analysis.run.used_steps == 57
    assert analysis.shares is not None
    assert analysis.shares.checkpoint == 0
    assert analysis.step_ms is not None
    assert analysis.step_ms.median == pytest.approx(36)
    assert analysis.step_ms.max == pytest.approx(136)


def test_a_checkpoint_in_every_step_stays_in_the_statistics() -> None:
    run = RunBuilder(jitter=0.05)
    run.steps(60, checkpoint={1: 20.0})
    with run.engine() as engine:
        analysis = analyze(engine)
    assert [(one.rank, one.kind, one.cause) for one in analysis.stragglers] == [
        (1, "rank", "checkpoint")
    ]


def test_the_stub_of_a_step_after_the_last_is_no_step() -> None:
    run = RunBuilder()
    run.steps(30)
    for rank in range(4):
        run.span(rank, "step", run.now[rank], run.now[rank] + 1000, "train_step", 30)
    with run.engine() as engine:
        analysis = analyze(engine)
    assert analysis.run.steps == 30
