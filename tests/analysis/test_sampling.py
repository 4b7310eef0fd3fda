"""Where only some steps were looked into, shares and verdicts rest on those."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.analysis.oracle import Span
from tests.analysis.runs import EPOCH, GROUP, tables_of
from tracekit.analysis import analyze
from tracekit.dataset import EVENTS, DuckDB
from tracekit.findings.result import Analysis

MS = 1_000_000
WINDOWS = [(first, first + 3) for first in range(10, 200, 20)]


def run(late: int) -> list[Span]:
    """Two ranks, 200 steps of ten ms; in windows rank 1 comes late to the collective (ms)."""
    spans: list[Span] = []
    inside = {step for first, last in WINDOWS for step in range(first, last + 1)}
    for rank in (0, 1):
        for step in range(200):
            start = step * 10 * MS
            spans.append(Span(rank, step, "step", start, start + 10 * MS, id=10 * step + 1))
            if step not in inside:
                continue
            came = start + (4 + late * rank) * MS
            spans.append(Span(rank, step, "forward", start, came, "thread:f", 10 * step + 2))
            spans.append(
                Span(
                    rank, step, "comm", came, start + 9 * MS, "thread:c", 10 * step + 3, None,
                    "all_reduce", step,
                )
            )  # fmt: skip
    return spans


def verdict(spans: list[Span], windows: list[tuple[Any, Any]]) -> Analysis:
    tables = tables_of(spans)
    rows = [
        {
            "run_id": "run",
            "attempt": 0,
            "rank": rank,
            "name": "profile_window",
            "time_ns": EPOCH,
            "attributes": [("first_step", json.dumps(a)), ("last_step", json.dumps(b))],
        }
        for rank in (0, 1)
        for a, b in windows
    ]
    tables["events"] = pa.Table.from_pylist(rows, EVENTS)
    with DuckDB() as engine:
        for name, table in tables.items():
            engine.register(name, table)
        return analyze(engine)


def test_shares_are_those_of_the_steps_that_were_looked_into() -> None:
    result = verdict(run(late=0), list(WINDOWS))
    assert result.shares is not None
    assert result.shares.compute == pytest.approx(0.4)
    assert result.shares.exposed_communication == pytest.approx(0.5)
    assert result.run.used_steps > 150, "times are those of all steps"
    assert GROUP in {one.group for one in result.collectives}


def test_a_straggler_is_found_in_the_windows() -> None:
    result = verdict(run(late=3), list(WINDOWS))
    (straggler,) = result.stragglers
    assert (straggler.rank, straggler.cause) == (1, "forward")
    assert verdict(run(late=0), list(WINDOWS)).stragglers == ()


def test_windows_that_say_nonsense_are_passed_over() -> None:
    result = verdict(run(late=0), [("x", None), ([], {}), (5, 2), (900, 901)])
    assert result.shares is not None
    assert result.shares.exposed_communication == pytest.approx(0.5 * 40 / 200, abs=0.02)
