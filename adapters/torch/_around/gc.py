"""Pauses of the garbage collector, where they are long enough to matter."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters.torch._guard import failed
from tracekit.recorder import clock

__all__ = ["watch_gc"]

FULL = 2
LONG_NS = 1_000_000

_GC = recorder.span_type("gc", "gc")
_users = 0
_lock = threading.Lock()
_began = 0


def _collecting(phase: str, info: dict[str, Any]) -> None:
    """Record collections of the oldest generation, and any that takes a millisecond."""
    global _began
    if phase == "start":
        _began = clock()
        return
    try:
        end = clock()
        if _began and (info["generation"] >= FULL or end - _began >= LONG_NS):
            attributes = {"generation": info["generation"], "collected": info["collected"]}
            _GC.complete(_began, end, attributes=attributes)
    except Exception as error:
        failed("gc", error)


def watch_gc() -> list[Callable[[], None]]:
    """Record pauses of the garbage collector; returns what undoes it."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            gc.callbacks.append(_collecting)
    return [_forget]


def _forget() -> None:
    global _users, _began
    with _lock:
        _users -= 1
        if not _users:
            gc.callbacks.remove(_collecting)
            _began = 0
