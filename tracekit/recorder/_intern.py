"""Small ids for what repeats: names, lanes, collectives, groups, attribute keys and short texts.

The ids are the same for all recorders of a process. Each table is capped: beyond the cap a text
becomes ``~other`` (id 0) and is counted, so a name made of a step number cannot fill memory.
"""

from __future__ import annotations

import json
import threading
from typing import Protocol

from tracekit.model import Collective

__all__ = ["OTHER", "Interner", "interner"]

OTHER = "~other"
_NAME, _LANE, _COLLECTIVE, _SCHEMA, _STRING, _GROUP, _FACT = 2, 3, 4, 5, 6, 7, 8
_CAPS = {
    _NAME: 8192,
    _LANE: 1024,
    _COLLECTIVE: 8192,
    _SCHEMA: 4096,
    _STRING: 32768,
    _GROUP: 255,
}
_TO_JSON = {_SCHEMA, _STRING}
"""What has no room here is written as JSON instead: nothing is lost."""
_BYTES = 640 << 10
_LONGEST = 256


class Listener(Protocol):
    """Who has to know what ids mean; a recorder's sink is one."""

    def define(self, type_: int, id_: int, payload: bytes) -> bool: ...
    def count(self, counter: str, amount: int = 1) -> None: ...


class Interner:
    """The tables of a process; listeners are told every definition, also those before them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ids: dict[int, dict[str, int]] = {table: {} for table in _CAPS}
        self._last = dict.fromkeys(_CAPS, 0)
        self._log: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self._listeners: list[tuple[Listener, list[int]]] = []
        """Each with the number of definitions it was told."""
        self._telling = False
        self.strings = self._ids[_STRING]

    def name(self, text: str) -> int:
        """The id of a span's or event's name."""
        return self._id(_NAME, text)

    def lane(self, text: str) -> int:
        """The id of a lane."""
        return self._id(_LANE, text)

    def string(self, text: str) -> int:
        """The id of an attribute's text; -1 when it is too long or the table is full."""
        known = self.strings.get(text)
        if known is not None:
            return known
        return (self._id(_STRING, text) or -1) if len(text) <= _LONGEST else -1

    def group(self, text: str) -> int:
        """The row of a process group in the table of sequence numbers."""
        return self._id(_GROUP, text)

    def collective(self, collective: Collective) -> int:
        """The id of what is constant over the calls of a collective."""
        fields = [
            collective.op,
            collective.group,
            collective.group_size,
            collective.dtype,
            collective.peer,
        ]
        return self._id(_COLLECTIVE, json.dumps(fields), encoded=True)

    def schema(self, keys: tuple[str, ...], types: str) -> int:
        """The id of attribute keys and their types, one letter each: i, f, b, s, n."""
        return self._id(_SCHEMA, json.dumps([list(keys), types]), encoded=True)

    def listen(self, listener: Listener) -> None:
        """Tell a journal all definitions, those made before it and those to come."""
        with self._lock:
            self._listeners.append((listener, [0]))
            self._tell()

    def forget(self, listener: Listener) -> None:
        """Stop telling a journal that is closed."""
        with self._lock:
            self._listeners = [entry for entry in self._listeners if entry[0] is not listener]

    def fold(self) -> int:
        """Count a name, lane or group that becomes ``~other``; returns its id, 0."""
        with self._lock:
            for listener, _ in self._listeners:
                listener.count("other")
        return 0

    def after_fork(self) -> None:
        """In a child: nobody listens any more, and a lock held elsewhere is gone."""
        self._lock = threading.RLock()
        self._listeners = []
        self._telling = False

    def _id(self, table: int, text: str, encoded: bool = False) -> int:
        ids = self._ids[table]
        known = ids.get(text)
        if known is not None:
            return known
        with self._lock:
            known = ids.get(text)
            if known is not None:
                return known
            payload = (text if encoded else json.dumps(text)).encode("utf-8", "surrogatepass")
            if len(ids) >= _CAPS[table] or self._bytes + len(payload) > _BYTES:
                return 0 if table in _TO_JSON else self.fold()
            self._last[table] += 1
            id_ = self._last[table]
            self._log.append((table, id_, payload))
            self._bytes += len(payload) + 16
            self._tell()
            ids[text] = id_
            return id_

    def _tell(self) -> None:
        """Hand on what is new, in order also when a garbage collection meanwhile adds to it."""
        if self._telling:
            return
        self._telling = True
        try:
            for listener, told in self._listeners:
                while told[0] < len(self._log):
                    told[0] += 1
                    listener.define(*self._log[told[0] - 1])
        finally:
            self._telling = False


interner = Interner()
