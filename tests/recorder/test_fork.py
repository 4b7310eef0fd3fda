"""A forked child, a DataLoader's worker say, is silent and leaves its parent's journal alone."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from tests.recorder.tape import Tape
from tracekit import recorder


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child; returns its exit code, 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_records_nothing_and_raises_nothing(tape: Tape) -> None:
    work = recorder.span_type("work")
    token = work.begin()
    with recorder.span("around", n=1), recorder.step(1):

        def child() -> None:
            assert recorder.current() is None
            for _ in range(1_000):
                with recorder.span("child"), recorder.span("attributed", new="text"), work:
                    work.complete(1, 2)
            work.end(token)
            recorder.event("child event", value=1.0)
            recorder.fact("child fact", 1)
            tape.recorder.event("child event")
            tape.recorder.begin_step(9)
            tape.recorder.end_step()
            tape.recorder.close()

        assert in_child(child) == 0
        assert [name for _, name, _ in tape.open_spans()] == ["work", "around", "train_step"]
    work.end(token)
    assert sorted(row["name"] for row in tape.spans()) == ["around", "train_step", "work"]
    assert tape.events() == []
    assert tape.journal().definitions.facts == []
    assert not tape.journal().stopped


def test_the_parent_goes_on_as_if_nothing_had_been(tape: Tape) -> None:
    for number in range(3):
        with recorder.span("work", number=number):
            assert in_child(lambda: None) == 0
    assert [row["attributes"]["number"] for row in tape.spans("work")] == [0, 1, 2]


def test_a_child_that_leaves_a_with_of_its_parent_records_nothing(tape: Tape) -> None:
    with recorder.span("around"):
        pid = os.fork()
        if pid == 0:
            try:
                with recorder.span("inside"):
                    pass
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert [row["name"] for row in tape.spans()] == ["around"]
