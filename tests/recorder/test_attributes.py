"""Attributes come back as they went in: their keys, their order, their JSON types."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorder.tape import Tape, recording
from tracekit import recorder

WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
JSON = st.recursive(
    WORDS | st.integers(-(1 << 90), 1 << 90),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal JSON type: 1, 1.0 and true differ."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@pytest.mark.parametrize("value", [0, -1, 1 << 62, 1.0, 0.1, -0.0, True, False, None, "", "é", "x"])
def test_a_value_keeps_its_json_type(tape: Tape, value: Any) -> None:
    with recorder.span("work", value=value):
        pass
    recorder.event("loss", value=1.0, value2=value)
    assert same(tape.span("work")["attributes"], {"value": value})
    assert same(tape.events()[0]["attributes"], {"value2": value})


def test_a_value_may_change_its_type_from_span_to_span(tape: Tape) -> None:
    values = [1, 1.0, True, "1", None, [1], {"a": 1}, 1 << 70, 1]
    for value in values:
        with recorder.span("work", value=value, other="x"):
            pass
    got = [row["attributes"] for row in tape.spans("work")]
    assert same(got, [{"value": value, "other": "x"} for value in values])


def test_keys_may_change_from_span_to_span(tape: Tape) -> None:
    given: list[dict[str, Any]] = [
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"a": 1},
        {"a": 1, "b": 2, "c": 3},
        {"c": 1.5},
    ]
    for attributes in given:
        with recorder.span("work", **attributes):
            pass
    assert [row["attributes"] for row in tape.spans("work")] == given


def test_many_attributes_of_all_types_are_kept(tape: Tape) -> None:
    attributes: dict[str, Any] = {f"int{i}": i for i in range(9)}
    attributes |= {"text": "x" * 300, "list": [1, {"a": None}], "wide": 1 << 80, "float": 1.5}
    with recorder.span("work", **attributes):
        pass
    assert tape.span("work")["attributes"] == attributes


@settings(max_examples=25, deadline=None)
@given(given=st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=9), max_size=9))
def test_any_json_is_kept(
    tmp_path_factory: pytest.TempPathFactory, given: list[dict[str, Any]]
) -> None:
    work = recorder.span_type("work")
    with recording(tmp_path_factory.mktemp("journal")) as tape:
        for attributes in given:
            work.end(work.begin(), attributes)
        got = [row["attributes"] for row in tape.spans("work")]
    assert same(got, given)


def test_what_json_has_no_word_for_becomes_text(tape: Tape) -> None:
    class Shape:
        def __str__(self) -> str:
            return "(2, 3)"

    with recorder.span("work", nan=math.nan, inf=-math.inf, shape=Shape(), raw=b"\x00", s={7}):
        pass
    got = tape.span("work")["attributes"]
    assert got == {"nan": "nan", "inf": "-inf", "shape": "(2, 3)", "raw": "b'\\x00'", "s": [7]}


def test_numbers_of_other_libraries_stay_numbers(tape: Tape) -> None:
    numpy = pytest.importorskip("numpy")
    with recorder.span("work", i=numpy.int32(7), f=numpy.float32(0.5), b=numpy.bool_(True)):
        pass
    got = tape.span("work")["attributes"]
    assert (got["i"], got["f"]) == (7, 0.5)


def test_a_text_too_long_is_cut_and_the_span_is_kept(tape: Tape) -> None:
    with recorder.span("work", text="ä" * 100_000, number=1):
        pass
    recorder.event("log", text="ä" * 100_000)
    assert tape.span("work")["attributes"]["text"].startswith("ä" * 100)
    assert tape.span("work")["attributes"]["number"] == 1
    assert tape.events()[0]["text"].startswith("ä" * 1000)


def test_attributes_stay_with_their_span_across_chunks(tmp_path: Path) -> None:
    with recording(tmp_path, segment_bytes=1 << 17) as tape:
        for number in range(2_000):
            with recorder.span("work", number=number, text=f"t{number % 7}"):
                pass
        got = [row["attributes"] for row in tape.spans("work")]
    assert got == [{"number": number, "text": f"t{number % 7}"} for number in range(2_000)]


def test_an_event_has_value_text_and_attributes(tape: Tape) -> None:
    recorder.event("loss", value=0.5, text="fine", phase="train")
    recorder.event("started")
    loss, started = tape.events()
    assert (loss["value"], loss["text"], loss["attributes"]) == (0.5, "fine", {"phase": "train"})
    assert (started["value"], started["text"], started["attributes"]) == (None, None, {})


def test_a_fact_is_kept_as_json(tape: Tape) -> None:
    recorder.fact("versions", {"torch": "2.13", "nan": math.nan, "deep": [[1]]})
    (fact,) = tape.journal().definitions.facts
    assert fact.name == "versions"
    assert json.loads(fact.value) == {"torch": "2.13", "nan": "nan", "deep": [[1]]}
