"""Whatever a training script hands over, recording never raises into it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recorder.tape import Tape
from tracekit import recorder


class Hostile:
    """Refuses everything that can be refused."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __float__(self) -> float:
        raise RuntimeError("no number")


class Text(str):
    """A text of a type of its own, as numpy's."""


ODD: list[Any] = [
    Hostile(),
    None,
    7,
    b"bytes",
    ["a", "list"],
    Text("own"),
    "\ud800 half a pair",
    "x" * 10_000,
    "\0",
    float("nan"),
    1 << 5000,
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_odd_names_kinds_and_values_are_taken(tape: Tape, odd: Any) -> None:
    with recorder.span(odd):
        with recorder.span("kind", kind=odd):
            pass
        with recorder.span("value", value=odd, nested={"a": [odd]}):
            pass
    recorder.event(odd, value=odd, text=odd, attribute=odd)
    recorder.fact(odd, odd)
    with recorder.span("after", n=1):
        pass
    assert tape.span("after")["attributes"] == {"n": 1}
    assert tape.span("after")["parent_id"] is None
    assert {"kind", "value"} <= {row["name"] for row in tape.spans()}


@pytest.mark.parametrize(
    "odd", ["\ud800 half", "two\nlines\x1b[31m", "y" * 10_000], ids=["half", "lines", "long"]
)
def test_what_is_said_of_odd_input_is_one_short_line_that_can_be_shown(
    tape: Tape, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    no_number: Any = "seven"
    recorder.event(odd, value=no_number)
    (said,) = caplog.messages
    said.encode()
    assert said.isprintable()
    assert len(said) < 450


def test_an_unknown_kind_is_recorded_as_user(tape: Tape) -> None:
    with recorder.span("work", kind="dancing"):
        pass
    assert tape.span("work")["kind"] == "user"


def test_a_list_that_holds_itself_is_taken(tape: Tape) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with recorder.span("work", endless=endless):
        pass
    assert tape.span("work")["attributes"]["endless"]


def test_without_a_recorder_everything_is_silent() -> None:
    assert recorder.current() is None
    work = recorder.span_type("work")
    with recorder.span("a"), recorder.span("b", n=1), work, recorder.step(3):
        work.end(work.begin(seq=4, nbytes=5), {"a": 1})
        work.complete(1, 2)
        recorder.event("loss", value=1.0)
        recorder.fact("a", 1)


def test_after_the_end_everything_is_silent(tape: Tape) -> None:
    work = recorder.span_type("work")
    token = work.begin()
    entered = recorder.span("entered")
    entered.__enter__()
    tape.recorder.close()
    records = len(tape.spans())
    entered.__exit__(None, None, None)
    work.end(token)
    with recorder.span("a"), recorder.span("b", n=1), work, recorder.step(3):
        work.end(work.begin())
        recorder.event("loss", value=1.0)
        recorder.fact("a", 1)
    tape.recorder.begin_step(1)
    tape.recorder.end_step()
    assert len(tape.spans()) == records
    assert len(tape.open_spans()) == 2
