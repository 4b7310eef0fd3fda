"""Spans made with OpenTelemetry's SDK in the run: where they stand, what of them is kept."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from tests.recorder.tape import Tape, recording
from tracekit import recorder
from tracekit.adapters import opentelemetry as adapter
from tracekit.adapters.opentelemetry import TracekitSpanExporter, TracekitSpanProcessor
from tracekit.dataset import open_run


@pytest.fixture
def tape(tmp_path: Path) -> Iterator[Tape]:
    with recording(tmp_path) as tape:
        yield tape
    recorder.tell_stopped()


def tracer_with(*processors: Any, scope: str = "library", **options: Any) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False, **options)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider.get_tracer(scope)


@pytest.fixture
def tracer() -> Tracer:
    return tracer_with(TracekitSpanProcessor())


def exported(**options: Any) -> tuple[Tracer, BatchSpanProcessor]:
    """A tracer whose spans come in one batch, when asked for."""
    processor = BatchSpanProcessor(TracekitSpanExporter(), schedule_delay_millis=600_000)
    return tracer_with(processor, **options), processor


# Where they stand


def test_a_span_is_in_the_step_that_it_started_in(tape: Tape, tracer: Tracer) -> None:
    tape.recorder.begin_step(7)
    late = tracer.start_span("late")
    tape.recorder.begin_step(8)
    with tracer.start_as_current_span("call"):
        pass
    tape.recorder.end_step()
    late.end()
    with tracer.start_as_current_span("after"):
        pass
    steps = {row["step"]: row["span_id"] for row in tape.spans("train_step")}
    rows = {row["name"]: row for row in tape.spans()}
    assert (rows["late"]["step"], rows["late"]["parent_id"]) == (7, steps[7])
    assert (rows["call"]["step"], rows["call"]["parent_id"]) == (8, steps[8])
    assert (rows["after"]["step"], rows["after"]["parent_id"]) == (None, None)


def test_spans_inside_each_other_name_their_parents(tape: Tape, tracer: Tracer) -> None:
    tape.recorder.begin_step(1)
    with (
        tracer.start_as_current_span("outer"),
        recorder.span("ours"),
        tracer.start_as_current_span("inner"),
        tracer.start_as_current_span("innermost"),
    ):
        pass
    rows = {row["name"]: row for row in tape.spans()}
    assert rows["innermost"]["parent_id"] == rows["inner"]["span_id"]
    assert rows["inner"]["parent_id"] == rows["ours"]["span_id"]
    assert rows["outer"]["parent_id"] == tape.recorder.step_id


def test_a_parent_that_has_ended_or_is_in_another_thread_is_still_the_parent(
    tape: Tape, tracer: Tracer
) -> None:
    parent = tracer.start_span("parent")
    context = set_span_in_context(parent)
    parent.end()

    def work() -> None:
        tracer.start_span("child", context=context).end()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert tape.span("child")["parent_id"] == tape.span("parent")["span_id"]


def test_a_parent_in_another_step_is_an_attribute_only(tape: Tape, tracer: Tracer) -> None:
    """A step is a trace of its own, and a parent is in the same trace."""
    with tracer.start_as_current_span("whole run") as whole:
        tape.recorder.begin_step(1)
        with tracer.start_as_current_span("call"):
            pass
        tape.recorder.end_step()
    call = tape.span("call")
    assert call["parent_id"] == tape.span("train_step")["span_id"]
    assert call["attributes"]["otel.parent_span_id"] == f"{whole.get_span_context().span_id:016x}"


def test_spans_of_a_batch_are_placed_by_their_time_under_their_parents(tape: Tape) -> None:
    tracer, processor = exported()
    with tracer.start_as_current_span("before"):
        pass
    for number in (3, 4):
        tape.recorder.begin_step(number)
        with tracer.start_as_current_span(f"outer {number}"):
            time.sleep(0.002)
            with tracer.start_as_current_span(f"inner {number}"):
                pass
    tape.recorder.end_step()
    time.sleep(0.002)
    with tracer.start_as_current_span("after"):
        pass
    processor.force_flush()
    rows = {row["name"]: row for row in tape.spans()}
    steps = {row["step"]: row["span_id"] for row in tape.spans("train_step")}
    for number in (3, 4):
        outer, inner = rows[f"outer {number}"], rows[f"inner {number}"]
        assert (outer["step"], outer["parent_id"]) == (number, steps[number])
        assert (inner["step"], inner["parent_id"]) == (number, outer["span_id"])
    for name in ("before", "after"):
        assert (rows[name]["step"], rows[name]["parent_id"]) == (None, None)
    processor.shutdown()  # type: ignore[no-untyped-call]


def test_a_span_made_afterwards_is_placed_by_its_time(tape: Tape, tracer: Tracer) -> None:
    tape.recorder.begin_step(1)
    time.sleep(0.005)
    middle = time.time_ns()
    time.sleep(0.005)
    tape.recorder.begin_step(2)
    span = tracer.start_span("told later", start_time=middle)
    span.end(end_time=middle + 1000)
    row = tape.span("told later")
    assert (row["step"], row["duration_ns"]) == (1, 1000)


def test_times_are_those_of_the_span_on_the_clock_of_the_run(tape: Tape, tracer: Tracer) -> None:
    before = recorder.clock()
    with tracer.start_as_current_span("call") as span:
        time.sleep(0.01)
    after = recorder.clock()
    row = tape.span("call")
    assert row["duration_ns"] == span.end_time - span.start_time  # type: ignore[attr-defined]
    slack = 5_000_000
    assert before - slack <= row["start_ns"]
    assert row["start_ns"] + row["duration_ns"] <= after + slack


def test_a_span_that_ends_before_it_starts_has_no_duration(tape: Tape, tracer: Tracer) -> None:
    now = time.time_ns()
    tracer.start_span("back", start_time=now).end(end_time=now - 10**9)
    assert tape.span("back")["duration_ns"] == 0


def test_a_span_that_has_not_ended_is_open_in_the_run(tape: Tape, tracer: Tracer) -> None:
    span = tracer.start_span("hangs")
    assert [(kind, name) for kind, name, _ in tape.open_spans()] == [("user", "hangs")]
    span.end()
    assert tape.open_spans() == []
    assert len(tape.spans("hangs")) == 1


def test_lanes_are_those_of_the_instrumentations(tape: Tape) -> None:
    processor = TracekitSpanProcessor()
    for scope in ("requests", "redis"):
        with tracer_with(processor, scope=scope).start_as_current_span("call"):
            pass
    lanes = {(row["kind"], row["lane"]) for row in tape.spans("call")}
    assert lanes == {("user", "otel:requests"), ("user", "otel:redis")}


# What they keep


def test_ids_kind_status_and_exception_are_kept(tape: Tape, tracer: Tracer) -> None:
    with tracer.start_as_current_span("outer") as outer:
        try:
            with tracer.start_as_current_span("fails", kind=SpanKind.CLIENT) as span:
                raise KeyError("gone")
        except KeyError:
            pass
    row = tape.span("fails")
    assert row["status"] == "error"
    assert row["attributes"] == {
        "otel.trace_id": f"{span.get_span_context().trace_id:032x}",
        "otel.span_id": f"{span.get_span_context().span_id:016x}",
        "otel.parent_span_id": f"{outer.get_span_context().span_id:016x}",
        "otel.kind": "client",
        "otel.status_description": "KeyError: 'gone'",
        "exception.type": "KeyError",
        "exception.message": "'gone'",
        "exception.escaped": "False",
    }
    assert tape.span("outer")["status"] == "ok"


def test_a_status_that_is_set_to_ok_is_no_error(tape: Tape, tracer: Tracer) -> None:
    with tracer.start_as_current_span("good") as span:
        span.set_status(Status(StatusCode.OK))
    assert tape.span("good")["status"] == "ok"


def test_attributes_keep_their_json_types(tape: Tape, tracer: Tracer) -> None:
    given: dict[str, Any] = {
        "text": "ä\ud800\x00",
        "int": -3,
        "wide": 1 << 70,
        "float": 0.5,
        "bool": True,
        "nan": math.nan,
        "inf": -math.inf,
        "texts": ("a", "b"),
        "numbers": (1.5, math.nan),
        "bytes": b"\xffz",
        "device": "cuda:0",
        "launch_ns": 5,
        "otel.trace_id": "mine",
        "": "no name",
    }
    with tracer.start_as_current_span("call", attributes=given):
        pass
    row = tape.span("call")
    found = row["attributes"]
    kept = {name: found.get(name) for name in ("int", "wide", "float", "bool", "nan", "inf")}
    assert kept == {
        "int": -3, "wide": 1 << 70, "float": 0.5, "bool": True, "nan": "nan", "inf": "-inf",
    }  # fmt: skip
    assert found["texts"] == ["a", "b"]
    assert found["numbers"] == [1.5, "nan"]
    assert found["bytes"] == "\\xffz"
    assert (found["otel.device"], row["device"]) == ("cuda:0", None)
    assert (found["otel.launch_ns"], row["launch_ns"]) == (5, None)
    assert found["otel.otel.trace_id"] == "mine"
    assert len(found["otel.trace_id"]) == 32
    assert found["text"].startswith("ä")


@pytest.mark.parametrize(
    "given",
    [
        {"a": "x" * 100_000},
        {f"text {n}": "é" * 200 for n in range(500)},
        {f"number {n}": n for n in range(500)},
        {"numbers": tuple(range(10_000))},
        {"n" * 5000: "long name"},
        {"many digits": 10**5000},
        {"control": "\x01" * 3000},
    ],
)
def test_too_much_is_cut_and_said_and_never_costs_the_span_or_its_ids(
    tape: Tape, given: dict[str, Any]
) -> None:
    limits = SpanLimits(max_attributes=1000, max_span_attributes=1000)
    tracer = tracer_with(TracekitSpanProcessor(), span_limits=limits)
    with tracer.start_as_current_span("call", attributes=given):
        pass
    found = tape.span("call")["attributes"]
    assert (len(found["otel.trace_id"]), len(found["otel.span_id"])) == (32, 16)
    assert len(json.dumps(found)) < 12_000
    kept = len(set(found) - {"otel.trace_id", "otel.span_id", "otel.dropped_attributes"})
    assert kept + found.get("otel.dropped_attributes", 0) == len(given)


def test_foreign_texts_take_no_room_among_the_known_ones(tape: Tape, tracer: Tracer) -> None:
    from tracekit.recorder._intern import interner

    with tracer.start_as_current_span("call", attributes={"url": "http://only-once/4711"}):
        pass
    assert tape.span("call")["attributes"]["url"] == "http://only-once/4711"
    assert "http://only-once/4711" not in interner.strings


def test_a_name_that_changes_is_the_last_one(tape: Tape, tracer: Tracer) -> None:
    with tracer.start_as_current_span("GET") as span:
        span.update_name("GET /users")
    assert [row["name"] for row in tape.spans()] == ["GET /users"]


def test_names_without_end_fold_and_are_attributes_then(
    tape: Tape, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_book", adapter._Book())
    monkeypatch.setattr(adapter, "MOST_NAMES", 4)
    for number in range(6):
        with tracer.start_as_current_span(f"GET /{number}"):
            pass
    assert [row["name"] for row in tape.spans()] == [
        *(f"GET /{number}" for number in range(4)),
        *["~other"] * 2,
    ]
    told = [row["attributes"].get("otel.name") for row in tape.spans()]
    assert told == [None] * 4 + ["GET /4", "GET /5"]


def test_instrumentations_without_end_share_a_lane(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_book", adapter._Book())
    monkeypatch.setattr(adapter, "MOST_LANES", 2)
    processor = TracekitSpanProcessor()
    for number in range(4):
        with tracer_with(processor, scope=f"s{number}").start_as_current_span("call"):
            pass
    assert [row["lane"] for row in tape.spans()] == ["otel:s0", "otel:s1", *["otel:~other"] * 2]
    assert tape.spans()[3]["attributes"]["otel.scope.name"] == "s3"


# What is left out, and what nobody notices


def test_what_tracekit_exported_does_not_come_back(tape: Tape) -> None:
    both = (TracekitSpanProcessor(), SimpleSpanProcessor(TracekitSpanExporter()))
    with tracer_with(*both, scope="tracekit").start_as_current_span("ours"):
        pass
    assert tape.spans() == []


def test_a_span_that_comes_by_several_ways_is_recorded_once(tape: Tape) -> None:
    tracer = tracer_with(
        TracekitSpanProcessor(),
        TracekitSpanProcessor(),
        SimpleSpanProcessor(TracekitSpanExporter()),
    )
    with tracer.start_as_current_span("call"):
        pass
    assert len(tape.spans("call")) == 1
    assert tape.open_spans() == []


def test_without_a_recorder_spans_are_dropped_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tracekit")
    tracer = tracer_with(TracekitSpanProcessor(), SimpleSpanProcessor(TracekitSpanExporter()))
    with tracer.start_as_current_span("call"):
        pass
    assert TracekitSpanExporter().export([]) is SpanExportResult.SUCCESS
    assert caplog.messages == []


def test_spans_that_began_before_recording_or_end_after_it_harm_nothing(
    tmp_path: Path, tracer: Tracer
) -> None:
    early = tracer.start_span("early")
    with recording(tmp_path) as tape:
        early.end()
        late = tracer.start_span("late")
        rows = tape.spans()
    recorder.tell_stopped()
    late.end()
    assert [(row["name"], row["step"]) for row in rows] == [("early", None)]


def test_nothing_of_a_stopped_recorder_is_kept(tmp_path: Path, tracer: Tracer) -> None:
    with recording(tmp_path):
        open_ = tracer.start_span("open")
        tracer.start_span("ended").end()
        assert adapter._book.places
    recorder.tell_stopped()
    assert (adapter._book.open, adapter._book.places) == ({}, {})
    open_.end()


def test_more_open_spans_than_are_held_are_recorded_when_they_end(tape: Tape) -> None:
    tracer = tracer_with(TracekitSpanProcessor())
    spans = [tracer.start_span("one of many") for _ in range(adapter.MOST_OPEN + 50)]
    assert len(tape.open_spans()) == adapter.MOST_OPEN
    for span in spans:
        span.end()
    assert len(tape.spans("one of many")) == adapter.MOST_OPEN + 50
    assert (tape.open_spans(), adapter._book.open) == ([], {})


def test_what_is_remembered_of_spans_is_bounded(
    tape: Tape, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "MOST_KNOWN", 10)
    for _ in range(50):
        tracer.start_span("call").end()
    assert len(adapter._book.places) <= 10
    assert len(tape.spans("call")) == 50


def test_a_span_that_is_odd_is_recorded_without_attributes_and_said_and_not_raised(
    tape: Tape, tracer: Tracer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder._current, "_said", set())

    def breaks(*_: object) -> Any:
        raise RuntimeError("odd span")

    monkeypatch.setattr(adapter, "_attributes", breaks)
    for _ in range(3):
        with tracer.start_as_current_span("call"):
            pass
    said = [text for text in caplog.messages if "odd span" in text]
    assert said == [
        "tracekit: a span of OpenTelemetry was not recorded as it is: RuntimeError: odd span"
    ]
    assert (len(tape.spans("call")), tape.open_spans()) == (3, [])


def test_nothing_is_recorded_while_recording_pauses(tape: Tape, tracer: Tracer) -> None:
    recorder.pause.on = True
    try:
        with tracer.start_as_current_span("call"):
            pass
        late = tracer.start_span("late")
    finally:
        recorder.pause.on = False
    late.end()
    assert (tape.spans(), tape.open_spans(), adapter._book.open) == ([], [], {})


def test_threads_that_make_spans_at_once_lose_none(
    tape: Tape, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "MOST_KNOWN", 50)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(300):
            with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert len(tape.spans("outer")) == len(tape.spans("inner")) == 2400
    assert tape.open_spans() == []


# In processes of their own

SCRIPT = """
    import os, sys, tracekit
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    from tracekit.adapters.opentelemetry import TracekitSpanExporter, TracekitSpanProcessor

    folder, path, way = sys.argv[1:]
    exporter = ConsoleSpanExporter(
        out=open(path, "a"), formatter=lambda span: span.to_json(indent=None) + "\\n"
    )
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    ways = {
        "processor": TracekitSpanProcessor,
        "exporter": lambda: BatchSpanProcessor(TracekitSpanExporter()),
    }
    provider.add_span_processor(ways[way]())
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("their.library")
    with tracer.start_as_current_span("launch"):
        tracekit.start(
            run="r", dir=folder, rank=0, world_size=1, agent=False, span_exporter=exporter
        )
    for number in range(20):
        with tracekit.step(number), tracer.start_as_current_span("call") as span:
            span.set_attribute("n", number)
"""


@pytest.mark.parametrize("way", ["processor", "exporter"])
def test_a_program_with_opentelemetry_gets_both_ways_at_once_and_no_loop(
    way: str, tmp_path: Path
) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(out), way],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "200"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = [json.loads(line) for line in out.read_text().splitlines()]
    told = [span["name"] for span in printed]
    theirs = [span for span in printed if span["name"] == "call"]
    assert sorted(told) == ["call"] * 20 + ["launch"] + ["train_run"] * 2 + ["train_step"] * 20
    assert all("otel.span_id" not in span["attributes"] for span in printed)
    with open_run(tmp_path / "r") as run:
        rows = [row for row in run.table("spans").to_pylist() if row["name"] == "call"]
    steps = {row["step"]: dict(row["attributes"]) for row in rows}
    assert sorted(steps) == list(range(20))
    assert {json.loads(a["otel.span_id"]) for a in steps.values()} == {
        span["context"]["span_id"].removeprefix("0x") for span in theirs
    }
    assert [json.loads(a["n"]) for _, a in sorted(steps.items())] == list(range(20))
    linked = next(
        span["links"] for span in printed if span["name"] == "train_run" and span["links"]
    )
    launch = next(span for span in printed if span["name"] == "launch")
    assert linked[0]["context"]["trace_id"] == launch["context"]["trace_id"]


def test_nothing_imports_opentelemetry_but_this_adapter(tmp_path: Path) -> None:
    code = "import sys, tracekit.adapters; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_without_the_sdk_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["opentelemetry.sdk"] = None
import tracekit.errors
try:
    import tracekit.adapters.opentelemetry
except tracekit.errors.MissingDependency as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("opentelemetry-sdk is not installed: pip install")
