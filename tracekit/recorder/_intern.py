"""Small ids for what repeats: names, lanes, collectives, groups, attribute keys and short texts.

The ids are the same for all recorders of a process. Each table is capped: beyond the cap a text
becomes ``~other`` (id 0) and is counted, so a name made of a step number cannot fill memory.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

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
_BYTES = 640 << 10
_LONGEST = 256


class Interner:
    """The tables of a process; ``listeners`` are told every definition, also those before them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ids: dict[int, dict[str, int]] = {table: {} for table in _CAPS}
        self._log: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self._listeners: list[Callable[[int, int, bytes], bool]] = []
        self.strings = self._ids[_STRING]
        self.folded = 0

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

    def listen(self, listener: Callable[[int, int, bytes], bool]) -> None:
        """Tell a journal all definitions, those made before it and those to come."""
        with self._lock:
            for type_, id_, payload in self._log:
                listener(type_, id_, payload)
            self._listeners.append(listener)

    def forget(self, listener: Callable[[int, int, bytes], bool]) -> None:
        """Stop telling a journal that is closed."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def after_fork(self) -> None:
        """In a child: nobody listens any more, and a lock held elsewhere is gone."""
        self._lock = threading.RLock()
        self._listeners.clear()

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
                self.folded += 1
                return 0
            id_ = len(ids) + 1
            self._log.append((table, id_, payload))
            self._bytes += len(payload) + 16
            for listener in self._listeners:
                listener(table, id_, payload)
            ids[text] = id_
            return id_


interner = Interner()
