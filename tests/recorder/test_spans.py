"""What a span becomes: its times, its parent, its end, whoever ends it and in whatever order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorder.tape import Tape, recording
from tracekit import recorder
from tracekit.model import Clock, Collective


def test_spans_inside_each_other_name_their_parents(tape: Tape) -> None:
    with recorder.span("epoch"):
        with recorder.span("load", kind="data"), recorder.span("decode", kind="data"):
            pass
        with recorder.span("train"):
            pass
    epoch, load = tape.span("epoch"), tape.span("load")
    assert epoch["parent_id"] is None
    assert load["parent_id"] == tape.span("train")["parent_id"] == epoch["span_id"]
    assert tape.span("decode")["parent_id"] == load["span_id"]


def test_a_span_lasts_from_its_begin_to_its_end(tape: Tape) -> None:
    before = recorder.clock()
    with recorder.span("work"):
        during = recorder.clock()
    after = recorder.clock()
    row = tape.span("work")
    assert before <= row["start_ns"] <= during
    assert during <= row["start_ns"] + row["duration_ns"] <= after


def test_an_exception_marks_the_span_and_goes_on(tape: Tape) -> None:
    def fails() -> None:
        with recorder.span("plain"), recorder.span("attributed", n=1):
            raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        fails()
    assert {row["name"]: row["status"] for row in tape.spans()} == {
        "plain": "error",
        "attributed": "error",
    }
    with recorder.span("next"):
        pass
    assert tape.span("next")["status"] == "ok"
    assert tape.span("next")["parent_id"] is None


def test_one_span_type_serves_spans_inside_each_other(tape: Tape) -> None:
    layer = recorder.span_type("layer", "forward")
    with layer, layer, layer:
        pass
    inner, middle, outer = tape.spans("layer")
    assert inner["parent_id"] == middle["span_id"]
    assert middle["parent_id"] == outer["span_id"]
    assert outer["parent_id"] is None


def test_one_use_of_a_span_with_attributes_may_be_entered_again(tape: Tape) -> None:
    load = recorder.span("load", worker=3)
    for _ in range(2):
        with load:
            pass
    assert [row["attributes"] for row in tape.spans("load")] == [{"worker": 3}] * 2


def test_a_span_is_ended_by_any_thread_and_keeps_its_own_lane_and_parent(tape: Tape) -> None:
    bucket = recorder.span_type("bucket", "comm")
    with recorder.span("backward", kind="backward"):
        token = bucket.begin()
        thread = threading.Thread(target=bucket.end, args=(token,), name="gloo")
        thread.start()
        thread.join()
    row, backward = tape.span("bucket"), tape.span("backward")
    assert row["parent_id"] == backward["span_id"]
    assert row["lane"] == backward["lane"] == f"thread:{threading.current_thread().name}"


def test_a_second_end_is_ignored(tape: Tape) -> None:
    bucket = recorder.span_type("bucket", "comm")
    token = bucket.begin()
    bucket.end(token)
    other = bucket.begin()
    bucket.end(token)
    assert len(tape.spans("bucket")) == 1
    assert [name for _, name, _ in tape.open_spans()] == ["bucket"]
    bucket.end(other)
    assert len(tape.spans("bucket")) == 2


def test_spans_that_end_in_another_order_keep_their_times_and_parents(tape: Tape) -> None:
    first, second = recorder.span("first"), recorder.span("second")
    third = recorder.span("third")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    third.__enter__()
    second.__exit__(None, None, None)
    third.__exit__(None, None, None)
    with recorder.span("after"):
        pass
    rows = {row["name"]: row for row in tape.spans()}
    assert list(rows) == ["first", "second", "third", "after"]
    assert rows["second"]["parent_id"] == rows["first"]["span_id"]
    assert rows["third"]["parent_id"] == rows["second"]["span_id"]
    assert rows["after"]["parent_id"] is None
    assert rows["first"]["start_ns"] <= rows["second"]["start_ns"] <= rows["third"]["start_ns"]
    assert tape.open_spans() == []


def test_generators_may_suspend_inside_a_span(tape: Tape) -> None:
    def batches() -> Iterator[int]:
        for number in range(3):
            with recorder.span("produce", number=number):
                yield number

    with recorder.span("loop"):
        for number, _ in zip(batches(), range(2), strict=False):
            with recorder.span("consume", number=number):
                pass
    assert len(tape.spans("consume")) == 2
    assert [row["attributes"]["number"] for row in tape.spans("produce")][:2] == [0, 1]
    assert tape.span("loop")["parent_id"] is None
    with recorder.span("after"):
        pass
    assert tape.span("after")["parent_id"] is None


def test_an_end_without_a_begin_is_ignored(tape: Tape) -> None:
    recorder.span("never").__exit__(None, None, None)
    recorder.span("never", n=1).__exit__(None, None, None)
    assert tape.spans() == []


def test_a_complete_span_has_the_times_given_and_the_innermost_parent(tape: Tape) -> None:
    wait = recorder.span_type("wait", "data")
    with recorder.span("loop"):
        wait.complete(1_000, 3_500)
    row = tape.span("wait")
    assert (row["start_ns"], row["duration_ns"], row["kind"]) == (1_000, 2_500, "data")
    assert row["parent_id"] == tape.span("loop")["span_id"]


def test_a_collective_keeps_what_identifies_it(tape: Tape) -> None:
    collective = Collective("all_reduce", "g0", 4, "float32", None)
    reduce = recorder.span_type("all_reduce", "comm", collective, lane="group:g0")
    with recorder.span("backward", kind="backward"):
        reduce.end(reduce.begin(seq=7, nbytes=1 << 40), {"buckets": 3})
        reduce.complete(10, 20, seq=8, nbytes=5)
    first, second = tape.spans("all_reduce")
    assert first["collective_op"] == "all_reduce"
    assert first["collective_group"] == "g0"
    assert (first["collective_seq"], first["collective_bytes"]) == (7, 1 << 40)
    assert (first["group_size"], first["collective_dtype"]) == (4, "float32")
    assert first["attributes"] == {"buckets": 3}
    assert first["lane"] == second["lane"] == "group:g0"
    assert (second["collective_seq"], second["collective_bytes"]) == (8, 5)
    parent = tape.span("backward")["span_id"]
    assert [first["parent_id"], second["parent_id"]] == [parent, parent]


def test_a_group_knows_its_last_begun_and_last_ended_collective(tape: Tape) -> None:
    reduce = recorder.span_type("all_reduce", "comm", Collective("all_reduce", "g1", 4))
    reduce.end(reduce.begin(seq=1))
    reduce.begin(seq=2)
    assert tape.journal().groups()["g1"] == (2, 1)
    reduce.complete(1, 2, seq=3)
    assert tape.journal().groups()["g1"] == (3, 3)


def test_reserved_attributes_become_columns(tape: Tape) -> None:
    kernel = recorder.span_type("kernel", "kernel", lane="stream:0:7", clock=Clock.DEVICE)
    attributes = {"launch_ns": 5, "device": "cuda:0", "grid": 3}
    kernel.complete(10, 20, attributes=attributes)
    row = tape.span("kernel")
    assert (row["launch_ns"], row["device"], row["clock"]) == (5, "cuda:0", "device")
    assert row["attributes"] == {"grid": 3}
    assert row["lane"] == "stream:0:7"


def test_more_spans_than_a_segment_holds_are_all_kept_in_order(tmp_path: Path) -> None:
    count = 9_000
    work = recorder.span_type("work")
    with recording(tmp_path, segment_bytes=1 << 18) as tape:
        for _ in range(count):
            with work:
                pass
        ids = [row["span_id"] for row in tape.spans("work")]
        assert len(tape.writer.files()) > 3
    assert ids == sorted(set(ids))
    assert len(ids) == count


@pytest.mark.parametrize("collective", [None, Collective("all_reduce", "g", 2)])
def test_a_span_can_end_at_a_time_that_somebody_else_took(
    tape: Tape, collective: Collective | None
) -> None:
    type_ = recorder.span_type("timed", "comm", collective)
    token = type_.begin()
    start = token[3]
    type_.end(token, at=start + 1234)
    assert (tape.span("timed")["start_ns"], tape.span("timed")["duration_ns"]) == (start, 1234)
