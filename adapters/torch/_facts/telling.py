"""Facts of things that a program may make again and again: only the first ones are told."""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from tracekit import recorder
from tracekit.recorder import Recorder

__all__ = ["tell"]

MOST = 32
"""Of one name: a journal has a mebibyte for facts, names and the like."""

_told: WeakKeyDictionary[Recorder, Counter[str]] = WeakKeyDictionary()


def tell(name: str, value: Any) -> None:
    """Record a fact, unless there are many of this name already."""
    rec = recorder.current()
    if rec is not None:
        told = _told.setdefault(rec, Counter())
        told[name] += 1
        if told[name] <= MOST:
            recorder.fact(name, value)
