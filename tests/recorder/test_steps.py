"""Steps and micro-steps: which of them a span belongs to."""

from __future__ import annotations

import itertools
import threading

import pytest

import tracekit
from tests.recorder.tape import Tape
from tracekit import recorder


def test_spans_of_all_threads_belong_to_the_step_that_is_open(tape: Tape) -> None:
    def work() -> None:
        with recorder.span("elsewhere"):
            pass

    with tracekit.step(12):
        with recorder.span("here"):
            pass
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    with recorder.span("after"):
        pass
    step = tape.span("train_step")
    assert (step["kind"], step["step"], step["parent_id"]) == ("step", 12, None)
    for name in ("here", "elsewhere"):
        assert (tape.span(name)["step"], tape.span(name)["parent_id"]) == (12, step["span_id"])
    assert (tape.span("after")["step"], tape.span("after")["parent_id"]) == (None, None)


def test_a_span_around_the_loop_is_no_parent_of_what_lies_in_a_step(tape: Tape) -> None:
    with recorder.span("epoch"):
        with tracekit.step(0), recorder.span("forward", kind="forward"):
            pass
        with recorder.span("validate"):
            pass
    assert tape.span("forward")["parent_id"] == tape.span("train_step")["span_id"]
    assert tape.span("validate")["parent_id"] == tape.span("epoch")["span_id"]


def test_a_step_that_begins_ends_the_one_before(tape: Tape) -> None:
    for number in range(3):
        tape.recorder.begin_step(number)
    tape.recorder.end_step()
    tape.recorder.end_step()
    rows = tape.spans("train_step")
    assert [row["step"] for row in rows] == [0, 1, 2]
    for earlier, later in itertools.pairwise(rows):
        assert earlier["start_ns"] + earlier["duration_ns"] <= later["start_ns"]


def test_micro_steps_number_what_lies_between(tape: Tape) -> None:
    with tracekit.step(4):
        for micro in range(2):
            tape.recorder.set_micro_step(micro)
            with recorder.span("forward", kind="forward"):
                pass
        tape.recorder.set_micro_step(None)
        with recorder.span("optimizer", kind="optimizer"):
            pass
    assert [row["micro_step"] for row in tape.spans("forward")] == [0, 1]
    assert tape.span("optimizer")["micro_step"] is None
    assert {row["step"] for row in tape.spans()} == {4}


def test_the_recorder_says_which_step_is_open(tape: Tape) -> None:
    assert tape.recorder.step is None
    with tracekit.step(7):
        assert tape.recorder.step == 7
        tape.recorder.set_micro_step(1)
        assert tape.recorder.step == 7
    assert tape.recorder.step is None
    assert tape.recorder.user_steps


def test_an_exception_marks_its_step(tape: Tape) -> None:
    with pytest.raises(ZeroDivisionError), tracekit.step(0):
        raise ZeroDivisionError
    assert tape.span("train_step")["status"] == "error"


@pytest.mark.parametrize("number", ["first", None, -1, 1 << 60, float("nan")])
def test_a_step_that_is_no_number_is_not_recorded_and_hurts_nobody(tape: Tape, number: int) -> None:
    with tracekit.step(number), recorder.span("inside"):
        pass
    assert tape.spans("train_step") == []
    assert tape.span("inside")["step"] is None


def test_the_recorder_knows_which_step_was_open_at_a_time(tape: Tape) -> None:
    before = recorder.clock()
    with tracekit.step(3):
        third, inside = recorder.clock(), tape.recorder.step_id
    between = recorder.clock()
    with tracekit.step(4):
        fourth, later = recorder.clock(), tape.recorder.step_id
        assert tape.recorder.step_at(fourth) == (tape.recorder.step_word, later)
    assert tape.recorder.step_at(third) == (4 << 16, inside)
    assert tape.recorder.step_at(fourth) == (5 << 16, later)
    assert tape.recorder.step_at(before) == tape.recorder.step_at(between) == (0, 0)


def test_of_many_steps_the_newest_are_known(tape: Tape) -> None:
    times = []
    for number in range(300):
        with tracekit.step(number):
            times.append(recorder.clock())
    assert tape.recorder.step_at(times[0]) == (0, 0)
    assert tape.recorder.step_at(times[-256])[0] >> 16 == 300 - 255
