"""What the recorder needs from whoever keeps its records; the journal fits these shapes."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Chunk", "Sink"]


Chunk = tuple[memoryview, int, int]
"""Room for the records of one thread: 64-bit words, ``first`` and ``commit``.

Records lie at the bytes ``first``, ``first + 64``, … below its end; the commit word of the record
at ``offset`` is ``commit + offset``. ``commit >> 32`` is the epoch of the segment.
"""


class Sink(Protocol):
    """A place for records that outlives the process; every method is safe from any thread."""

    open_words: memoryview
    open_rows: int
    group_words: memoryview
    group_rows: int

    def chunk(self, lane: int, thread_id: int) -> Chunk:
        """A fresh chunk; never fails and never waits for a disk."""
        ...

    def define(self, type_: int, id_: int, payload: bytes) -> bool:
        """Say what an id in records means, before a record uses it; False when it has no room."""
        ...

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter that every report states: dropped, open_overflow, other."""
        ...

    def close(self) -> None:
        """No record comes any more."""
        ...
