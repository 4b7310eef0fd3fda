"""Which state a thread records with.

``local`` is replaced by a fresh ``threading.local`` at start(), stop() and fork: each thread then
finds no state, asks ``attach`` for one, and no check is needed while recording.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.recorder._thread import ThreadState

__all__ = ["Here", "attach", "follow", "local", "reset", "thread", "turn"]

local = threading.local()


def attach() -> ThreadState:
    """The state of this thread, made on first use; ``_current`` puts the real one here."""
    raise NotImplementedError


def thread() -> ThreadState:
    """The state of this thread; ``local.state`` for who has no time for a call."""
    try:
        state: ThreadState = local.state
    except AttributeError:
        state = attach()
    return state


_turn = 0
"""Grows whenever a thread has to ask for its state anew."""
_heres: dict[int, weakref.ref[Here]] = {}


class Here:
    """The state of one thread, for an adapter that always records on that thread.

    ``here.found or here.find()`` is that thread's state, for who runs on it. A training empties
    the caches between two records; to find a thread-local is then a fifth of what a span costs.
    """

    __slots__ = ("__weakref__", "found")

    def __init__(self) -> None:
        self.found: ThreadState | None = None
        key = id(self)
        _heres[key] = weakref.ref(self, lambda _: _heres.pop(key, None))

    def find(self) -> ThreadState:
        """The state of the thread that calls this."""
        turn = _turn
        state = thread()
        self.found = state
        if turn != _turn:  # said while this thread asked
            self.found = None
        return state


_followers: list[Callable[[threading.local], None]] = []


def follow(use: Callable[[threading.local], None]) -> None:
    """Tell a module which ``local`` to use, now and after each reset: a global of its own costs
    less than one of this module."""
    _followers.append(use)
    use(local)


def reset() -> None:
    """Let every thread ask for its state anew."""
    global local
    local = threading.local()
    for use in _followers:
        use(local)
    turn()


def turn() -> None:
    """Let those who hold a thread's state ask for it anew."""
    global _turn
    _turn += 1
    for reference in list(_heres.values()):
        here = reference()
        if here is not None:
            here.found = None
