"""What is recorded comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.ranks import GROUP, recording
from tracekit import recorder
from tracekit.dataset import open_run
from tracekit.model import KINDS, Clock, Collective

TEXTS = st.text(max_size=40)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.one_of(
    SCALARS,
    st.integers(),
    st.lists(SCALARS, max_size=4),
    st.dictionaries(TEXTS, SCALARS, max_size=3),
)
RESERVED = ("launch_ns", "device", "kind", "value", "text")
KEYS = st.text(min_size=1, max_size=12).filter(lambda key: key not in RESERVED)
ATTRIBUTES = st.dictionaries(KEYS, VALUES, max_size=9)


@dataclass(frozen=True)
class Call:
    """One call of the recorder."""

    how: str
    name: str
    kind: str
    attributes: dict[str, Any]
    start: int
    duration: int


CALLS = st.builds(
    Call,
    st.sampled_from(["with", "complete", "begin", "event"]),
    st.sampled_from(["forward", "ünïcode ✓", "", "a" * 200]),
    st.sampled_from(KINDS),
    ATTRIBUTES,
    st.integers(0, 1 << 61),
    st.integers(0, 1 << 61),
)


def record(call: Call) -> None:
    type_ = recorder.span_type(call.name, call.kind)
    if call.how == "with":
        with recorder.span(call.name, call.kind, **call.attributes):
            pass
    elif call.how == "complete":
        type_.complete(call.start, call.start + call.duration, attributes=call.attributes)
    elif call.how == "begin":
        type_.end(type_.begin(), call.attributes)
    else:
        recorder.event(call.name, call.duration / 3, call.kind, **call.attributes)


def tables(run_dir: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of spans by id, and of events."""
    with open_run(run_dir) as run:
        found = run.table("spans").to_pylist(), run.table("events").to_pylist()
    return sorted(found[0], key=lambda row: int(row["span_id"])), found[1]


def attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: json.loads(text) for key, text in row["attributes"] or ()}


def typed(values: Mapping[str, Any]) -> dict[str, str]:
    """Values with their types: 1, 1.0 and True are three things."""
    return {key: repr(value) for key, value in values.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(CALLS, max_size=40))
def test_arbitrary_spans_and_events_come_back_identical(calls: list[Call]) -> None:
    with TemporaryDirectory() as folder:
        with recording(Path(folder)) as made:
            for call in calls:
                record(call)
            offset = 0
        spans, events = tables(Path(folder))
        with open_run(Path(folder)) as run:
            clock = next(r for r in run.table("facts").to_pylist() if r["name"] == "clock")
            offset = json.loads(clock["value"])["offset_ns"]
    assert made.closed
    for row, call in zip(spans, [call for call in calls if call.how != "event"], strict=True):
        assert (row["name"], row["kind"]) == (call.name, call.kind)
        assert typed(attributes(row)) == typed(call.attributes)
        if call.how == "complete":
            assert (row["start_ns"] - offset, row["duration_ns"]) == (call.start, call.duration)
    for row, call in zip(events, [call for call in calls if call.how == "event"], strict=True):
        assert (row["name"], row["value"], row["text"]) == (
            call.name,
            call.duration / 3,
            call.kind,
        )
        assert typed(attributes(row)) == typed(call.attributes)


def test_spans_know_their_step_their_micro_step_and_their_parent(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        made.begin_step(7)
        with recorder.span("outer"):
            made.set_micro_step(1)
            with recorder.span("inner"):
                pass
        made.end_step()
        with recorder.span("after"):
            pass
    step, outer, inner, after = tables(tmp_path)[0]
    assert (step["kind"], step["name"], step["step"]) == ("step", "train_step", 7)
    assert (step["parent_id"], outer["parent_id"]) == (None, step["span_id"])
    assert inner["parent_id"] == outer["span_id"]
    assert (inner["step"], inner["micro_step"]) == (7, 1)
    assert (after["step"], after["micro_step"], after["parent_id"]) == (None, None, None)


def test_a_collective_has_its_columns(tmp_path: Path) -> None:
    broadcast = Collective("broadcast", GROUP, 4, "int64", peer=2)
    with recording(tmp_path):
        with recorder.span("outer"):
            kind = recorder.span_type("sync", "comm", broadcast, lane=f"group:{GROUP}")
            kind.end(kind.begin(41, 1 << 40))
        with recorder.span("plain"):
            pass
    outer, sync, plain = tables(tmp_path)[0]
    assert sync["parent_id"] == outer["span_id"]
    assert sync["lane"] == f"group:{GROUP}"
    columns = ("op", "group", "seq", "bytes", "dtype")
    found = [sync[f"collective_{name}"] for name in columns]
    assert found == ["broadcast", GROUP, 41, 1 << 40, "int64"]
    assert (sync["group_size"], sync["peer_rank"]) == (4, 2)
    assert [plain[f"collective_{name}"] for name in columns] == [None] * 5
    assert (plain["group_size"], plain["peer_rank"]) == (None, None)


def test_reserved_attributes_become_columns(tmp_path: Path) -> None:
    kernel = recorder.span_type("gemm", "kernel", lane="stream:cuda:0:7", clock=Clock.DEVICE)
    with recording(tmp_path):
        now = recorder.clock()
        kernel.complete(now, now + 5, attributes={"launch_ns": now - 9, "device": "cuda:0"})
        kernel.complete(now, now + 5, attributes={"launch_ns": now, "device": "cuda:1", "x": [1]})
        kernel.complete(now, now + 5)
        recorder.event("seen", device="cuda:0")
    (first, second, third), (event,) = tables(tmp_path)
    assert (first["device"], second["device"], third["device"]) == ("cuda:0", "cuda:1", None)
    assert first["launch_ns"] == first["start_ns"] - 9
    assert (second["launch_ns"], third["launch_ns"]) == (second["start_ns"], None)
    assert (first["attributes"], attributes(second)) == (None, {"x": [1]})
    assert (first["clock"], first["lane"]) == ("device", "stream:cuda:0:7")
    assert attributes(event) == {"device": "cuda:0"}


def test_an_exception_inside_is_the_status_of_the_span(tmp_path: Path) -> None:
    def fail() -> None:
        with recorder.span("breaks"):
            raise KeyError

    with recording(tmp_path):
        with recorder.span("works"):
            pass
        with pytest.raises(KeyError):
            fail()
    assert [row["status"] for row in tables(tmp_path)[0]] == ["ok", "error"]


def test_an_event_may_have_neither_value_nor_text(tmp_path: Path) -> None:
    with recording(tmp_path):
        recorder.event("plain")
        recorder.event("zero", 0.0, "")
        recorder.event("long", text="é" * 1000)
    plain, zero, long = tables(tmp_path)[1]
    assert (plain["value"], plain["text"]) == (None, None)
    assert (zero["value"], zero["text"] or "") == (0.0, "")
    assert long["text"] == "é" * 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.0, "5.0"),
        (-0.0, "-0.0"),
        (1e9, "1000000000.0"),
        (1e22, "1e+22"),
        (0.1, "0.1"),
        (float("nan"), '"nan"'),
        (float("-inf"), '"-inf"'),
        (True, "true"),
        (None, "null"),
        ("é\n", '"é\\n"'),
        (1 << 70, str(1 << 70)),
        ([1, 2.0, None], "[1, 2.0, null]"),
    ],
)
def test_values_of_attributes_are_json(tmp_path: Path, value: object, text: str) -> None:
    with recording(tmp_path), recorder.span("work", x=value):
        pass
    ((row,), _) = tables(tmp_path)
    assert row["attributes"] == [("x", text)]


def test_texts_that_utf8_cannot_hold_become_readable(tmp_path: Path) -> None:
    half = "\ud800"  # half of a surrogate pair, which UTF-8 cannot hold
    given_: dict[str, Any] = {half: half, "b": [half]}
    with recording(tmp_path), recorder.span(half, **given_):
        pass
    ((row,), _) = tables(tmp_path)
    assert row["name"] == "?"
    assert attributes(row) == {"?": half, "b": [half]}
