"""Who holds its thread's state records the same as who does not, in cheaper ways."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recorder.tape import Tape, recording
from tests.recorder.test_fork import in_child
from tracekit import recorder
from tracekit.model import Collective

FORWARD = recorder.span_type("forward", "forward")
forward = recorder.around(FORWARD)
REDUCE: Any = recorder.span_type("all_reduce", "comm", Collective("all_reduce", "g", 2))
LOSS = recorder.EventType("loss")


def looked_up(tape: Tape, steps: int) -> None:
    for step in range(steps):
        tape.recorder.begin_step()
        if step == 2:
            with pytest.raises(ValueError, match="wrong"), FORWARD:
                raise ValueError("wrong")
        with FORWARD, recorder.span("inside"):
            LOSS.record(step / 2)
            token = REDUCE.begin(step, 64)
        REDUCE.amend(token, step + 1)
        REDUCE.end(token, {"buckets": 3, "launch_ns": step + 7})


def state(here: recorder.Here) -> Any:
    return here.found or here.find()


def held(tape: Tape, steps: int) -> None:
    here = recorder.Here()
    for step in range(steps):
        tape.recorder.next_step_here(state(here))
        if step == 2:
            with pytest.raises(ValueError, match="invalid literal"):
                forward(here, int, ("wrong",), {"base": 10})
        token = forward(here, inside, (here,), {"step": step})
        REDUCE.end_of_buckets(token, 3, step + 7, step + 1, state(here))


def inside(here: recorder.Here, step: int) -> Any:
    with recorder.span("inside"):
        LOSS.record(step / 2, state(here))
        return REDUCE.begin(step, 64, state(here))


def told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is not a time of the clock."""
    times = ("start_ns", "duration_ns", "time_ns")
    return [{key: value for key, value in row.items() if key not in times} for row in rows]


@pytest.mark.parametrize("steps", [4, 3_000])
def test_the_records_are_the_same(tmp_path: Path, steps: int) -> None:
    found = []
    for way in (looked_up, held):
        folder = tmp_path / way.__name__
        folder.mkdir()
        with recording(folder, segment_bytes=1 << 18) as tape:
            way(tape, steps)
            opened = [(kind, name) for kind, name, _ in tape.open_spans()]
            groups = tape.journal().groups()["g"]
            tape.recorder.end_step()
            spans = sorted(tape.spans(), key=lambda row: row["span_id"])
            found.append((told(spans), told(tape.events()), opened, groups))
    assert found[0] == found[1]
    assert len(found[0][0]) == 4 * steps + 1
    assert len(found[0][1]) == steps


def test_steps_meet_without_a_gap(tape: Tape) -> None:
    here = recorder.Here()
    LOSS.record(0.0)  # from now on the thread has a place to write
    for _ in range(5):
        tape.recorder.next_step_here(state(here))
    assert tape.recorder.step == 4
    tape.recorder.end_step()
    steps = tape.spans("train_step")
    assert [row["step"] for row in steps] == [0, 1, 2, 3, 4]
    ends = [row["start_ns"] + row["duration_ns"] for row in steps]
    assert ends[:-1] == [row["start_ns"] for row in steps[1:]]
    known = [(begin, end) for _, begin, end in tape.recorder.ended_steps()]
    assert known == [(row["start_ns"], end) for row, end in zip(steps, ends, strict=True)]


def test_a_step_inside_of_another_span_names_it(tape: Tape) -> None:
    here = recorder.Here()
    tape.recorder.next_step_here(state(here))
    with recorder.span("epoch"):
        tape.recorder.next_step_here(state(here))
        tape.recorder.next_step_here(state(here))
    tape.recorder.next_step_here(state(here))
    tape.recorder.end_step()
    epoch = tape.span("epoch")["span_id"]
    parents = [row["parent_id"] for row in tape.spans("train_step")]
    assert parents == [None, epoch, epoch, None]


def test_a_step_that_another_thread_goes_on_with_is_that_thread_s(tape: Tape) -> None:
    tape.recorder.next_step_here(state(recorder.Here()))

    def other() -> None:
        here = recorder.Here()
        tape.recorder.next_step_here(state(here))
        tape.recorder.next_step_here(state(here))

    thread = threading.Thread(target=other, name="second")
    thread.start()
    thread.join()
    lanes = [row["lane"] for row in tape.spans("train_step")]
    assert lanes == ["thread:MainThread", "thread:second"]


def test_the_state_is_found_anew_where_another_recorder_takes_over(tmp_path: Path) -> None:
    here = recorder.Here()
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        with recording(folder) as tape:
            forward(here, int, (), {})
            assert len(tape.spans("forward")) == 1
    assert forward(here, int, ("12",), {}) == 12
    other = recorder.Recorder(recorder._current._NullSink(), 7, 8)
    with recording(tmp_path) as tape:
        recorder.install(other, default=False)
        with recorder.as_rank(7):
            assert state(here).recorder is other
        assert state(here).recorder is tape.recorder
        recorder.remove(other)


def test_a_forked_child_records_nothing(tape: Tape) -> None:
    here = recorder.Here()
    forward(here, int, (), {})

    def child() -> None:
        forward(here, int, (), {})

    assert in_child(child) == 0
    assert len(tape.spans()) == 1


def test_a_child_forked_inside_a_call_leaves_the_call_to_its_parent(tape: Tape) -> None:
    here = recorder.Here()

    pid = forward(here, os.fork, (), {})
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(tape.spans()) == 1


def test_a_span_left_open_inside_a_call_outlives_it(tape: Tape) -> None:
    here = recorder.Here()

    def generates() -> Iterator[int]:
        with recorder.span("left open"):
            yield 1
        yield 2

    def starts(generator: Iterator[int]) -> int:
        return next(generator)

    generator = generates()
    with recorder.span("outer"):
        assert forward(here, starts, (generator,), {}) == 1
        assert [name for _, name, _ in tape.open_spans()] == ["outer", "left open"]
        assert next(generator) == 2
        forward(here, int, (), {})
    outer = tape.span("outer")["span_id"]
    calls = tape.spans("forward")
    assert [row["parent_id"] for row in calls] == [outer, outer]
    assert tape.span("left open")["parent_id"] == calls[0]["span_id"]
    assert tape.open_spans() == []


def test_a_span_that_ends_inside_a_call_though_it_began_before_ends_alone(tape: Tape) -> None:
    here = recorder.Here()
    before = recorder.span("before")
    before.__enter__()
    forward(here, before.__exit__, (None, None, None), {})
    forward(here, int, (), {})
    begun = tape.span("before")["span_id"]
    assert [row["parent_id"] for row in tape.spans("forward")] == [begun, None]
    assert tape.open_spans() == []
