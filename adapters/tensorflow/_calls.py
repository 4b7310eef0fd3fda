"""What all workers must call together, as far as the host sees it: numbered, open while it lasts.

A collective that TensorFlow runs inside a graph is not seen from here. What the host sees are calls
that cannot end before all workers have come: reductions that are made outside of graphs, and the
call of the function that trains. The first are recorded as collectives; the second is kept in the
table of open spans only, so that a run that hangs shows who has come, and nothing is said of times.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tracekit import recorder
from tracekit.adapters.tensorflow._guard import guarded
from tracekit.model.collectives import Collective, group_id
from tracekit.recorder import CollectiveType, Recorder, Token

__all__ = ["HostCalls", "calls_of"]

_ORDINAL = {"host": 1000, "step": 1001, "start": 1002, "graph": 1003}
"""Groups of their own: what a profile says of collectives has other numbers."""
_LOST = ("AbortedError", "DeadlineExceededError", "UnavailableError")
"""What TensorFlow raises where a call ends because others did not come, or are gone."""


class HostCalls:
    """The calls of one rank that its peers make, too."""

    def __init__(self, rec: Recorder) -> None:
        self.recorder = rec
        self.size = rec.world_size
        self._seq = dict.fromkeys(_ORDINAL, 0)
        self._types: dict[tuple[str, str, str], CollectiveType] = {}
        self._told: set[str] = set()
        self._failed: list[tuple[CollectiveType, Token]] = []

    def _type(self, group: str, op: str, name: str) -> CollectiveType:
        key = group, op, name
        type_ = self._types.get(key)
        if type_ is None:
            id_ = group_id(range(self.size), _ORDINAL[group])
            made: Any = recorder.span_type(name, "comm", Collective(op, id_, self.size))
            type_ = self._types[key] = made
            if group not in self._told:
                self._told.add(group)
                ranks = list(range(self.size))
                about = {"id": id_, "name": f"tensorflow {group}", "ranks": ranks}
                self.recorder.fact("group", {**about, "backend": "tensorflow"})
        return type_

    @guarded("collective")
    def begin(self, group: str, op: str, name: str) -> tuple[CollectiveType, Token] | None:
        """Open a call; None where there is nobody to wait for."""
        if self.size < 2:
            return None
        self._give_up()
        self._seq[group] += 1
        type_ = self._type(group, op, name)
        return type_, type_.begin(self._seq[group])

    @contextmanager
    def call(self, group: str, op: str, name: str, keep: bool) -> Iterator[None]:
        """Have a call open while it runs; with ``keep`` it is recorded when it ends well."""
        opened = self.begin(group, op, name)
        try:
            yield
        except BaseException as error:
            self.fail(opened, error)
            raise
        self.end(opened, keep)

    def complete(
        self, group: str, op: str, start: int, end: int, nbytes: int, buckets: int = 1
    ) -> None:
        """Record a call whose times are known."""
        if self.size > 1:
            self._seq[group] += 1
            type_ = self._type(group, op, op)
            about = {"buckets": buckets} if buckets > 1 else None
            type_.complete(start, end, self._seq[group], nbytes, about)

    @guarded("collective")
    def end(self, opened: tuple[CollectiveType, Token] | None, keep: bool) -> None:
        """Close a call."""
        if opened is not None:
            type_, token = opened
            if keep:
                type_.end(token)
            else:
                type_.drop(token)

    @guarded("collective")
    def fail(self, opened: tuple[CollectiveType, Token] | None, error: BaseException) -> None:
        """Close a call that raised. One that others did not come to stays open, so that the record
        of a worker that ends with the error says in what it waited."""
        if opened is not None and type(error).__name__ in _LOST:
            if not self._failed:
                atexit.register(self._survived)
            self._failed.append(opened)
        else:
            self.end(opened, False)

    def _survived(self) -> None:
        if not hasattr(sys, "last_value"):  # the program caught the error, and ends well
            self._give_up()

    def _give_up(self) -> None:
        while self._failed:
            self.end(self._failed.pop(), False)


_known: WeakKeyDictionary[Recorder, HostCalls] = WeakKeyDictionary()


def calls_of(rec: Recorder) -> HostCalls:
    """The calls of a rank; made anew when its world turned out to be another one."""
    calls = _known.get(rec)
    if calls is None or calls.size != rec.world_size:
        calls = _known[rec] = HostCalls(rec)
    return calls
