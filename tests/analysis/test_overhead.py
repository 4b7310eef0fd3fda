"""What recording cost is always accounted for, and measured where steps went without."""

from __future__ import annotations

import random

import pytest

from tracekit.analysis import analyze
from tracekit.findings.result import Overhead
from tracekit.report import text
from tracekit.testing import RunBuilder


def overhead(run: RunBuilder) -> Overhead:
    with run.engine() as engine:
        found = analyze(engine).overhead
    assert found is not None
    return found


def costs(run: RunBuilder, **cost: float) -> None:
    for rank in range(run.world_size):
        run.fact("cost", cost, rank)


def test_the_account_is_spans_times_what_one_costs_there() -> None:
    run = RunBuilder()
    costs(run, span_ns=2000.0, call_ns=5000.0)
    run.steps(30)
    found = overhead(run)
    assert found.spans_per_step == pytest.approx(6)  # the step, four phases, the all-reduce
    assert found.accounted_us == pytest.approx(5 * 2 + 5)
    with run.engine() as engine:
        analysis = analyze(engine)
    assert analysis.step_ms is not None
    assert found.accounted_share == pytest.approx(0.015 / analysis.step_ms.median)
    assert "recording took 0.0" in text(analysis)
    assert found.slowdown is None


def test_without_a_known_cost_of_a_span_nothing_is_claimed() -> None:
    run = RunBuilder()
    run.steps(30)
    assert overhead(run).accounted_share is None
    with run.engine() as engine:
        assert "6 spans a step; what one costs was not recorded" in text(analyze(engine))


def measured(slower: float, noise: float) -> RunBuilder:
    """Blocks in turn as the recorder takes them; untraced steps take 40 ms."""
    run, chance = RunBuilder(jitter=0.0), random.Random(1)
    usual = sum(run.usual.values()) + run.transfer
    for step in range(900):
        if (step // 25) % 4 in (1, 2):
            run.untraced_step(usual * (1 + noise * chance.uniform(-1, 1)))
        else:
            more = usual * (slower + noise * chance.uniform(-1, 1))
            run.step(optimizer=run.usual["optimizer"] + more)
    return run


def test_the_measured_slowdown_comes_with_its_interval() -> None:
    found = overhead(measured(slower=0.01, noise=0.02))
    assert found.shown
    assert found.slowdown is not None
    assert found.slowdown == pytest.approx(0.01, abs=0.004)
    assert (found.low or 0) < found.slowdown < (found.high or 0)


def test_a_slowdown_within_the_noise_is_not_shown() -> None:
    run = measured(slower=0.01, noise=0.06)
    found = overhead(run)
    assert found.shown is False
    with run.engine() as engine:
        assert "measured slowdown not shown" in text(analyze(engine))


def test_untraced_steps_enter_no_statistics() -> None:
    run = RunBuilder()
    for _ in range(4):
        run.steps(10)
        for _ in range(10):
            run.untraced_step(500.0)
    with run.engine() as engine:
        analysis = analyze(engine)
    assert analysis.step_ms is not None
    assert analysis.step_ms.max < 100
    assert analysis.run.used_steps == 40
    assert not analysis.stragglers
