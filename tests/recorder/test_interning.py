"""Names that never stop being new fill no memory: they become ``~other``, counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recorder.tape import Tape, recording
from tracekit import recorder
from tracekit.journal.format import Live
from tracekit.recorder import _current, _intern
from tracekit.recorder._intern import Interner


class Listener:
    """Notes what an interner tells, and interns something itself when asked to."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, bytes]] = []
        self.folded = 0
        self.meanwhile: list[str] = []
        self.interner: Interner | None = None

    def define(self, type_: int, id_: int, payload: bytes) -> bool:
        if self.meanwhile and self.interner is not None:
            self.interner.name(self.meanwhile.pop())
        self.told.append((type_, id_, payload))
        return True

    def count(self, counter: str, amount: int = 1) -> None:
        self.folded += counter == "other"


def test_a_name_gets_one_id_and_is_told_once() -> None:
    interner, listener = Interner(), Listener()
    interner.listen(listener)
    assert interner.name("a") == interner.name("a") == 1
    assert interner.name("b") == 2
    assert interner.lane("a") == 1
    assert [json.loads(payload) for _, _, payload in listener.told] == ["a", "b", "a"]


def test_who_listens_late_is_told_what_came_before() -> None:
    interner, early, late = Interner(), Listener(), Listener()
    interner.listen(early)
    interner.name("a")
    interner.listen(late)
    interner.name("b")
    assert late.told == early.told


def test_who_stopped_listening_is_told_nothing() -> None:
    interner, listener = Interner(), Listener()
    interner.listen(listener)
    interner.forget(listener)
    interner.name("a")
    assert listener.told == []


def test_a_name_interned_while_another_is_told_gets_an_id_of_its_own() -> None:
    interner, listener = Interner(), Listener()
    listener.interner = interner
    interner.listen(listener)
    listener.meanwhile = ["from a garbage collection"]
    first = interner.name("a")
    assert interner.name("from a garbage collection") != first
    assert len({(type_, id_) for type_, id_, _ in listener.told}) == 2


def test_beyond_the_cap_names_fold_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_intern._CAPS, _intern._NAME, 3)
    interner, listener = Interner(), Listener()
    interner.listen(listener)
    assert [interner.name(f"step {i}") for i in range(5)] == [1, 2, 3, 0, 0]
    assert listener.folded == 2
    assert interner.name("step 1") == 2


def test_texts_beyond_the_cap_are_refused_and_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_intern._CAPS, _intern._STRING, 1)
    interner, listener = Interner(), Listener()
    interner.listen(listener)
    assert [interner.string("a"), interner.string("b")] == [1, -1]
    assert listener.folded == 0


def test_a_span_named_by_its_number_ends_as_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_current, "_MOST_TYPES", 5)
    monkeypatch.setattr(_current, "_types", {"user": {}})
    with recording(tmp_path) as tape:
        for number in range(9):
            with recorder.span(f"step {number}"):
                pass
        names = [row["name"] for row in tape.spans()]
        assert names == [f"step {number}" for number in range(5)] + ["~other"] * 4
        assert tape.counted(Live.OTHER) == 4


def test_texts_that_never_repeat_are_kept(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_intern._CAPS, _intern._STRING, 0)
    for number in range(5):
        with recorder.span("work", text=f"never seen {number}"):
            pass
    texts = [row["attributes"]["text"] for row in tape.spans("work")]
    assert texts == [f"never seen {number}" for number in range(5)]
