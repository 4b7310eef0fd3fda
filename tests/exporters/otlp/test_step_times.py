"""What a step's time went into is the same as in the reports, and as by definition."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings

from tests.analysis.oracle import Span, partition
from tests.analysis.runs import LENGTH, RANKS, STEPS, runs, tables_of
from tracekit.analysis.basis.tables import overview
from tracekit.analysis.collect import collect
from tracekit.analysis.options import Options
from tracekit.exporters._metrics.step_times import step_times
from tracekit.model import CLASSES
from tracekit.testing import RunBuilder


def of_step(rows: pa.Table, number: int) -> pa.Table:
    """As from parts: one chunk, sorted."""
    found = rows.filter(pc.equal(rows["step"], number)).unify_dictionaries().combine_chunks()
    return found.sort_by([("rank", "ascending"), ("start_ns", "ascending")])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spans=runs())
def test_classes_and_waits_are_those_of_the_definitions(spans: list[Span]) -> None:
    calls = [span.seq for span in spans if span.kind == "comm" and inside(span)]
    spans = [
        span
        for span in spans
        if inside(span) and (span.kind != "comm" or calls.count(span.seq) == RANKS)
    ]
    expected = partition(spans, RANKS)
    rows = tables_of(spans)["spans"]
    for number in range(STEPS):
        for rank, times in step_times(of_step(rows, number), lambda rank: "").items():
            wanted = dict(expected[rank, number])
            exposed = wanted.pop("wait") + wanted.pop("queue") + wanted.pop("transfer")
            assert times.classes == tuple(
                exposed if name == "exposed_communication" else wanted.get(name, 0)
                for name in CLASSES
            )
            assert times.wait == expected[rank, number]["wait"]
            assert times.wall == LENGTH


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("buckets", [0, 3])
def test_shares_and_waits_are_those_of_the_report(buckets: int, device: bool) -> None:
    run = RunBuilder(3, buckets=buckets, batchnorm=True, jitter=0.3)
    for number in range(12):
        begun = run.now[0]
        run.step(checkpoint={0: 5.0 * (number % 4 == 3)}, gc={1: 2.0}, other=0.5)
        waited_for(run, number, begun)
        for rank in range(3) if device else ():
            run.span(
                rank, "kernel", begun + 9_000_000, run.now[rank] - 2_000_000,
                step=number, lane="stream:cuda:0:7", clock="device",
            )  # fmt: skip
    with run.engine() as engine:
        seen = overview(engine)
        assert seen is not None
        tables = collect(engine, seen, Options())
    assert tables is not None
    rows = run.tables()["spans"]
    for number in range(12):
        for rank, times in step_times(of_step(rows, number), lambda rank: "").items():
            got = dict(zip(CLASSES, times.classes or (), strict=True))
            known = [name for name in got if name in tables.values]
            report = {name: tables.values[name][number, rank] for name in known}
            assert {name: got[name] for name in report} == pytest.approx(report, rel=1e-6)
            assert len(report) == len(got) - 1
            assert times.wait == pytest.approx(tables.values["exposed_wait"][number, rank], abs=1e3)
            assert sum(got.values()) == times.wall == tables.values["wall"][number, rank]


def waited_for(run: RunBuilder, number: int, begun: int) -> None:
    """An all-gather in the background, and threads that stand there until it is over."""
    for rank in range(3):
        start, end = begun + (2 + rank) * 1_000_000, begun + 7_000_000
        run.collective(
            rank, "all_gather", number, start, end, lane=f"group:{run.group}", step=number
        )
        run.collective(rank, "all_gather", number, end - 2_000_000, end, name="wait", step=number)


def inside(span: Span) -> bool:
    """Whether it lies in its step."""
    if span.step is None:
        return False
    return span.step * LENGTH <= span.start and span.end <= (span.step + 1) * LENGTH
