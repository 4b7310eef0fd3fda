"""What one thread holds of one recorder: its chunk, its stack of open spans, its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.model.record import COMMIT, RECORD_BYTES, RECORD_WORDS

if TYPE_CHECKING:
    from tracekit.recorder._recorder import Recorder
    from tracekit.recorder._sink import Chunk

__all__ = [
    "ROWS_PER_THREAD",
    "THREAD_BLOCKS",
    "Entry",
    "Row",
    "ThreadState",
    "null_state",
    "row_at",
    "rows_by_depth",
]

THREAD_BLOCKS = 24
ROWS_PER_THREAD = 16
_DEEPEST = 64
# One scratch for all that is silenced. It is as large as a chunk and as the open-span table, so a
# thread that is silenced between two stores still stores inside it.
_SCRATCH = memoryview(bytearray(1025 * RECORD_BYTES))
_SCRATCH_WORDS = _SCRATCH.cast("q")


Row = tuple[int, int]
"""Byte offset of a row in the open-span table, and the word of its commit word."""
Entry = tuple[int, int, int, int, int, int]
"""what, start, step, id, parent and row's commit word of a span that is open on a thread."""


def row_at(number: int) -> Row:
    """The row with this number."""
    return number * RECORD_BYTES, number * RECORD_WORDS + COMMIT


def exhausted() -> NoReturn:
    """The slot source of a chunk that must not be written any more."""
    raise StopIteration


class ThreadState:
    """A thread's place to write; swapping its fields silences the thread without any check.

    ``slot()`` gives the next record's byte offset, the word of its commit word and the commit word
    itself, and raises ``StopIteration`` at the end of the chunk. ``rows`` are the thread's rows in
    the open-span table by depth; spans too deep for them share a row that nobody reads.
    """

    __slots__ = (
        "__weakref__",
        "buffer",
        "commit",
        "lane",
        "open_buffer",
        "open_words",
        "recorder",
        "refilling",
        "rows",
        "slot",
        "stack",
        "words",
    )

    def __init__(
        self,
        recorder: Recorder,
        lane: int,
        open_buffer: memoryview,
        open_words: memoryview,
        rows: Sequence[Row],
    ) -> None:
        self.recorder = recorder
        self.lane = lane
        self.open_buffer = open_buffer
        self.open_words = open_words
        self.rows = rows
        self.stack: list[Entry] = []
        self.slot: Callable[[], tuple[int, int, int]] = exhausted
        self.buffer = _SCRATCH
        self.words = _SCRATCH_WORDS
        self.commit = 0
        self.refilling = False

    def use(self, chunk: Chunk) -> None:
        """Write into this chunk from now on."""
        self.buffer = chunk.buffer
        self.words = chunk.words
        self.commit = chunk.commit
        offsets = range(chunk.first, len(chunk.buffer), RECORD_BYTES)
        marks = range(chunk.first // 8 + COMMIT, len(chunk.words), RECORD_WORDS)
        self.slot = zip(offsets, marks, count(chunk.commit + chunk.first, RECORD_BYTES)).__next__

    def retire(self) -> None:
        """Make the next record take a fresh chunk; called from any thread."""
        self.slot = exhausted

    def silence(self) -> None:
        """Send everything the thread writes from now on to scratch memory."""
        self.slot = repeat((0, COMMIT, 0)).__next__
        self.rows = ((0, COMMIT),) * _DEEPEST
        self.buffer = self.open_buffer = _SCRATCH
        self.words = self.open_words = _SCRATCH_WORDS


def rows_by_depth(own: Sequence[Row], spare: Row) -> tuple[Row, ...]:
    """The rows of a thread by depth, the spare one beyond its own."""
    return (*own, *(spare for _ in range(_DEEPEST - len(own))))


def null_state(recorder: Any) -> ThreadState:
    """A state that takes everything and keeps nothing."""
    state = ThreadState(recorder, 0, _SCRATCH, _SCRATCH_WORDS, ())
    state.silence()
    return state
