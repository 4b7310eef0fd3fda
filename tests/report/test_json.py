"""The JSON report: its keys are a contract."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tracekit import report
from tracekit.analysis import analyze
from tracekit.findings import IDS
from tracekit.testing import RunBuilder

KEYS = {
    "schema", "symptom", "phase", "run", "questions", "clock", "step_ms", "throughput", "shares",
    "ranks", "stragglers", "what_if", "collectives", "coverage", "overhead", "setup", "findings",
}  # fmt: skip


def told(run: RunBuilder) -> dict[str, Any]:
    with run.engine() as engine:
        value: dict[str, Any] = json.loads(report.json(analyze(engine)))
    return value


@pytest.fixture(scope="module")
def slow() -> dict[str, Any]:
    run = RunBuilder(jitter=0.05, batchnorm=True)
    run.steps(60, forward={2: 26})
    return told(run)


def test_the_keys_are_those_of_the_contract(slow: dict[str, Any]) -> None:
    assert set(slow) == KEYS
    assert slow["schema"] == 1
    assert {"id", "world_size", "ranks", "missing_ranks", "steps", "duration_s", "hosts"} <= set(
        slow["run"]
    )
    assert set(slow["questions"]) == {"lagging", "blocked", "idle", "fixed"}
    assert {"aligned", "error_us", "domains"} == set(slow["clock"])
    assert {"host", "offset_us", "drift_ppm", "error_us"} <= set(slow["clock"]["domains"][0])
    assert set(slow["step_ms"]) == {"median", "p95", "max"}
    assert set(slow["throughput"]) == {"samples_per_s"}
    assert {
        "compute", "exposed_communication", "data", "checkpoint", "other", "wait", "queue",
        "transfer", "communication_total", "wait_total", "queue_total", "transfer_total",
        "utilization",
    } <= set(slow["shares"])  # fmt: skip
    assert {
        "rank", "host", "own_work_ms", "mean_ratio", "lateness_ms", "imposed_wait_ms", "wait_ms",
        "arrived_last",
    } <= set(slow["ranks"][0])  # fmt: skip
    assert "device" not in slow["ranks"][0]  # there is no device timeline
    assert {
        "rank", "class", "cause", "slowdown", "imposed_wait_ms", "rules", "p", "certainty",
    } <= set(slow["stragglers"][0])  # fmt: skip
    assert {"slowdown", "without"} == set(slow["what_if"])
    assert {
        "op", "group", "group_size", "count", "bytes", "wait_ms", "queue_ms", "transfer_ms",
        "algbw_gbs", "busbw_gbs", "call_ms", "algbw_with_wait_gbs", "busbw_with_wait_gbs", "source",
    } <= set(slow["collectives"][0])  # fmt: skip
    assert {"files", "skipped", "dropped_spans", "open_spans"} <= set(slow["coverage"])
    assert {
        "id", "severity", "certainty", "title", "ranks", "steps", "lost_ms", "evidence", "advice",
    } <= set(slow["findings"][0])  # fmt: skip


def test_a_straggler_is_told_with_its_rules(slow: dict[str, Any]) -> None:
    (straggler,) = slow["stragglers"]
    assert (straggler["rank"], straggler["class"], straggler["cause"]) == (2, "rank", "forward")
    assert straggler["rules"] == ["peer", "mean"]
    finding = slow["findings"][0]
    assert finding["id"] == "straggler.rank"
    assert finding["rules"] == ["peer", "mean"]
    assert finding["imposed_wait_ms"] == straggler["imposed_wait_ms"]
    assert finding["steps"] == [0, 59]
    assert isinstance(finding["title"], str)


def test_every_finding_is_in_the_catalogue(slow: dict[str, Any]) -> None:
    assert {finding["id"] for finding in slow["findings"]} <= set(IDS)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_little_data_gives_null_and_never_nan(steps: int) -> None:
    run = RunBuilder()
    run.steps(steps)
    value = told(run)
    assert set(value) == KEYS
    if not steps:
        assert value["step_ms"] is value["shares"] is None
    assert all(math.isfinite(number) for number in numbers(value))


def test_the_text_of_a_hang_holds_its_evidence() -> None:
    run = RunBuilder()
    run.steps(30)
    run.hang(3)
    value = told(run)
    assert value["symptom"] == "hang"
    assert value["findings"][0]["evidence"]["user_frame"] == "/job/train.py:42 forward"


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, float) else []
