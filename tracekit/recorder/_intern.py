"""Small ids for what repeats: names, lanes, collectives, groups, attribute keys and short texts.

The ids are the same for all recorders of a process. Each table is capped: beyond the cap a text
becomes ``~other`` (id 0) and is counted, so a name made of a step number cannot fill memory.
"""

from __future__ import annotations

import json
from itertools import count
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
    """The tables of a process; listeners are told every definition, also those before them.

    There is no lock here. A garbage collection may intern something in any thread, also in one
    that holds the lock of a journal, so a lock of ours that is held while a journal is told would
    sooner or later be waited for for ever. Two threads that meet at a new text tell it both.
    """

    def __init__(self) -> None:
        self._ids: dict[int, dict[str, int]] = {table: {} for table in _CAPS}
        self._given: dict[int, dict[str, int]] = {table: {} for table in _CAPS}
        """As ``_ids``, and those that not all listeners know yet."""
        self._next = {table: count(1).__next__ for table in _CAPS}
        self._log: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self._listeners: tuple[Listener, ...] = ()
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
        row = self._id(_GROUP, text)
        return row if row <= _CAPS[_GROUP] else 0  # a number may be lost when two threads meet

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
        self._listeners = (*self._listeners, listener)
        for definition in self._log.copy():
            listener.define(*definition)

    def forget(self, listener: Listener) -> None:
        """Stop telling a journal that is closed."""
        self._listeners = tuple(known for known in self._listeners if known is not listener)

    def fold(self) -> int:
        """Count a name, lane or group that becomes ``~other``; returns its id, 0."""
        for listener in self._listeners:
            listener.count("other")
        return 0

    def after_fork(self) -> None:
        """In a child nobody listens any more."""
        self._listeners = ()

    def _id(self, table: int, text: str, encoded: bool = False) -> int:
        known = self._ids[table].get(text)
        if known is not None:
            return known
        given = self._given[table]
        payload = (text if encoded else json.dumps(text)).encode("utf-8", "surrogatepass")
        if text not in given and (
            len(given) >= _CAPS[table] or self._bytes + len(payload) > _BYTES
        ):
            return 0 if table in _TO_JSON else self.fold()
        fresh = self._next[table]()
        id_ = given.setdefault(text, fresh)
        if id_ == fresh:
            self._bytes += len(payload) + 16
            self._log.append((table, id_, payload))
        for listener in self._listeners:
            listener.define(table, id_, payload)
        self._ids[table][text] = id_
        return id_


interner = Interner()
