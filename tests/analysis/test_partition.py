"""Every instant of a step counts exactly once, in the class that the definitions give it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.analysis.oracle import CLASSES, Span, partition
from tests.analysis.runs import LENGTH, RANKS, runs, tables_of
from tracekit.analysis.basis.tables import Tables, overview
from tracekit.analysis.collect import collect
from tracekit.analysis.options import Options
from tracekit.dataset.engine import DuckDB
from tracekit.testing import RunBuilder

EXPOSED = {"wait": "exposed_wait", "queue": "exposed_queue", "transfer": "exposed_transfer"}


@pytest.fixture(scope="module")
def engine() -> DuckDB:
    return DuckDB(threads=1)


def measured(engine: DuckDB, spans: Sequence[Span], options: Options | None = None) -> Tables:
    for name, table in tables_of(spans).items():
        engine.register(name, table)
    seen = overview(engine)
    assert seen is not None
    tables = collect(engine, seen, options or Options())
    assert tables is not None
    return tables


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spans=runs())
def test_the_partition_is_the_one_of_the_definitions(engine: DuckDB, spans: list[Span]) -> None:
    tables = measured(engine, spans)
    expected = partition(spans, RANKS)
    for (rank, step), classes in expected.items():
        got = {name: tables.values[EXPOSED.get(name, name)][step, rank] for name in CLASSES}
        assert got == {name: classes[name] for name in CLASSES}
        assert tables.values["blocked"][step, rank] == classes["blocked"]
        assert sum(got.values()) == tables.values["wall"][step, rank] == LENGTH
        totals = [tables.values[f"{part}_total"][step, rank] for part in EXPOSED]
        assert sum(totals) == classes["communication"]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spans=runs())
def test_windows_do_not_change_a_number(engine: DuckDB, spans: list[Span]) -> None:
    whole = measured(engine, spans)
    cut = measured(engine, spans, Options(spans_per_window=1))
    for name, values in whole.values.items():
        np.testing.assert_array_equal(values, cut.values[name], name)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spans=runs())
def test_leaving_out_hidden_buckets_changes_totals_only(engine: DuckDB, spans: list[Span]) -> None:
    whole = measured(engine, spans)
    sampled = measured(engine, spans, Options(spans_for_totals=1))
    for name, values in whole.values.items():
        if not name.endswith("_total"):
            np.testing.assert_array_equal(values, sampled.values[name], name)


@pytest.mark.parametrize("buckets", [0, 4])
@pytest.mark.parametrize("batchnorm", [False, True])
def test_the_classes_of_a_ddp_step_add_up_to_it(buckets: int, batchnorm: bool) -> None:
    run = RunBuilder(jitter=0.2, buckets=buckets, batchnorm=batchnorm)
    run.steps(12, gc={1: 3}, checkpoint={0: 5})
    with run.engine() as engine:
        seen = overview(engine)
        assert seen is not None
        tables = collect(engine, seen, Options())
    assert tables is not None
    parts = ("compute", "data", "checkpoint", "eval", "compile", "gc", "other", *EXPOSED.values())
    total = sum(tables.values[name].astype(np.float64) for name in parts)
    np.testing.assert_allclose(total, tables.values["wall"], rtol=1e-6)
    own = sum(tables.values[f"own_{p}"].astype(np.float64) for p in OWN)
    np.testing.assert_allclose(own, tables.values["wall"] - tables.values["blocked"], rtol=1e-5)


OWN = ("data", "forward", "backward", "optimizer", "checkpoint", "eval", "compile", "gc", "other")
