"""A Perfetto trace reads back as the same spans, nested, with every text defined before its use."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.exporters.packets import Reader, packets_in
from tests.exporters.runs import any_spans, write_run
from tracekit.dataset import open_run
from tracekit.errors import MissingDependency
from tracekit.exporters import perfetto
from tracekit.testing.builder import RunBuilder

MS = 1_000_000


def packets_of(built: RunBuilder, folder: Path) -> list[Any]:
    pytest.importorskip("perfetto")
    file = io.BytesIO()
    with open_run(write_run(built, folder / "run")) as run:
        perfetto.export(run, file)
    return packets_in(file.getvalue())


def test_every_span_reads_back_with_exact_times(tmp_path: Path) -> None:
    built = RunBuilder(3, jitter=0.3, batchnorm=True, buckets=3)
    built.steps(4)
    reader = Reader(packets_of(built, tmp_path))
    shown = sorted(
        (rank, args["span_id"], name, start, end) for rank, name, start, end, args in reader.spans
    )
    assert shown == sorted(
        (s["rank"], s["span_id"], s["name"], s["start_ns"], s["start_ns"] + s["duration_ns"])
        for s in built.spans
    )
    for _, _, start, end, args in reader.spans:
        assert (args["start_ns"], args["start_ns"] + args["duration_ns"]) == (start, end)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(built=any_spans())
def test_spans_that_overlap_in_any_way_read_back(
    tmp_path_factory: pytest.TempPathFactory, built: RunBuilder
) -> None:
    reader = Reader(packets_of(built, tmp_path_factory.mktemp("odd")))
    shown = sorted((args["span_id"], start, end) for _, _, start, end, args in reader.spans)
    assert shown == [
        (s["span_id"], s["start_ns"], s["start_ns"] + s["duration_ns"]) for s in built.spans
    ]


def test_arrows_lead_from_the_last_to_a_mark_in_each_wait(tmp_path: Path) -> None:
    built = RunBuilder(3)
    built.step(forward={2: 30})
    (last,) = (s for s in built.spans if s["rank"] == 2 and s["name"] == "all_reduce")
    reader = Reader(packets_of(built, tmp_path))
    flows = reader.flows.values()
    assert sorted((begin[1], end[1]) for begin, end in flows) == [(2, 0), (2, 1)]
    for (begin, _, source), (end, _, target) in flows:
        assert begin == last["start_ns"] == end
        assert source == target == "all_reduce"
    assert reader.marks == [(0, "rank 2 came"), (1, "rank 2 came")]


def test_counters_events_and_attributes_read_back(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    built.event(1, "loss", 0.25)
    built.event(1, "loss", float("nan"))
    odd = [("a", '"x\\u0000"'), ("b", "18446744073709551615"), ("c", "null"), ("d", "1.5")]
    built.span(0, "user", MS, MS, "odd", attributes=[*odd, ("e", "true"), ("f", "-3")])
    reader = Reader(packets_of(built, tmp_path))
    assert ("loss", 1, 0.25) in reader.counters
    assert ("lateness in group 0, ms", 0, 0.0) in reader.counters
    assert [(name, args["value"]) for name, args in reader.instants] == [("loss", "nan")]
    (args,) = (args for _, name, _, _, args in reader.spans if name == "odd")
    assert args["attributes"] == {
        "a": "x\x00", "b": 2**64 - 1, "c": "null", "d": 1.5, "e": True, "f": -3,
    }  # fmt: skip


def test_open_spans_and_sub_tracks_are_closed_in_order(tmp_path: Path) -> None:
    built = RunBuilder(4, buckets=2)
    built.steps(2)
    built.hang(1)
    reader = Reader(packets_of(built, tmp_path))
    assert len(reader.spans) == len(built.spans)


def test_without_the_extra_the_line_to_type_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    built = RunBuilder(1)
    built.step()
    with (
        open_run(write_run(built, tmp_path / "run")) as run,
        pytest.raises(MissingDependency, match=r"pip install 'tracekit-blackbox\[perfetto\]'"),
    ):
        perfetto.export(run, io.BytesIO())
