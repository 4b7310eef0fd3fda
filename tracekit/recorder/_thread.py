"""What one thread holds of one recorder: its chunk, its stack of open spans, its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.model.record import COMMIT, RECORD_BYTES, RECORD_WORDS

if TYPE_CHECKING:
    from tracekit.recorder._recorder import Recorder
    from tracekit.recorder._sink import Chunk

__all__ = [
    "ROWS_PER_THREAD",
    "THREAD_BLOCKS",
    "Frame",
    "Row",
    "Slots",
    "ThreadState",
    "innermost",
    "null_state",
    "row_at",
]

THREAD_BLOCKS = 24
ROWS_PER_THREAD = 16
# One scratch for all that is silenced. It is as large as a chunk and as the open-span table, so a
# thread that is silenced between two stores still stores inside it.
_SCRATCH = memoryview(bytearray(1025 * RECORD_BYTES)).cast("q")


Row = tuple[int, int]
"""Byte offset of a row in the open-span table, and the word of its commit word."""
Slots = Callable[[], tuple[memoryview, int, int, int]]
"""Gives the place of a chunk's next record: the chunk, the record's byte offset, the place of its
commit word, and that word. Both the function and what it gives stay valid when a record that a
signal handler makes meanwhile fills the chunk."""


def row_at(number: int) -> Row:
    """The row with this number."""
    return number * RECORD_BYTES, number * RECORD_WORDS + COMMIT


class Frame:
    """A span that is open on a thread, or was: frames are used again, so none is made per span.

    ``outer`` and ``deeper`` are the frames around it; ``row`` and ``mark`` are the places of its
    first and last word in the open-span table.
    """

    __slots__ = ("deeper", "id", "mark", "outer", "parent", "row", "start", "step", "what")

    def __init__(self, row: Row, outer: Frame | None = None) -> None:
        self.row, self.mark = row[0] // 8, row[1]
        self.outer = outer
        self.deeper: Frame | None = None
        self.what = -1  # no span's; a row keeps the last one's, so it is written when it changes
        self.start = self.step = self.id = self.parent = 0


def innermost(top: Frame, what: int) -> Frame:
    """The innermost open frame of a span that ends before one opened later, put on the top.

    Generators and coroutines do this. Raises ``LookupError`` when no such span is open.
    """
    frame = top
    while frame.what is not what:
        if frame.outer is None:
            raise LookupError
        frame = frame.outer
    outer, inner = frame.outer, frame.deeper
    if outer is None or inner is None:
        raise LookupError
    outer.deeper, inner.outer = inner, outer
    frame.outer, frame.deeper = top, top.deeper
    if top.deeper is not None:
        top.deeper.outer = frame
    top.deeper = frame
    return frame


def exhausted() -> NoReturn:
    """The slot source of a chunk that must not be written any more."""
    raise StopIteration


@cache
def _places(first: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Byte offsets of the records of a chunk, and the words of their commit words."""
    offsets = tuple(range(first, size, RECORD_BYTES))
    return offsets, tuple(offset // 8 + COMMIT for offset in offsets)


class ThreadState:
    """A thread's place to write; swapping its fields silences the thread without any check.

    ``lane`` stands where a ``what`` word has it. ``slot()`` gives the place of the next record and
    raises ``StopIteration`` at the end of the chunk. ``top`` is the innermost open span; the
    outermost frame stands for none.
    """

    __slots__ = (
        "__weakref__",
        "epoch",
        "lane",
        "next_id",
        "open_words",
        "recorder",
        "refilling",
        "rows",
        "slot",
        "top",
    )

    def __init__(
        self,
        recorder: Recorder,
        lane: int,
        open_words: memoryview,
        rows: Iterable[Row],
    ) -> None:
        self.recorder = recorder
        self.next_id = recorder.next_id
        self.lane = lane
        self.open_words = open_words
        self.top = Frame((0, COMMIT))
        self.rows = iter(rows)
        self.slot: Slots = exhausted
        self.epoch = 0
        self.refilling = False

    def deepen(self, outer: Frame) -> Frame:
        """The frame inside one that has none yet; beyond the thread's rows they share the spare."""
        frame = Frame(next(self.rows, self.recorder.spare_row), outer)
        outer.deeper = frame
        return frame

    def use(self, chunk: Chunk) -> None:
        """Write into this chunk from now on."""
        words, first, commit = chunk.words, chunk.first, chunk.commit
        offsets, marks = _places(first, len(words) * 8)
        commits = count(commit + first, RECORD_BYTES)
        self.epoch = commit >> 32
        self.slot = zip(repeat(words), offsets, marks, commits).__next__

    def retire(self) -> None:
        """Make the next record take a fresh chunk; called from any thread."""
        self.slot = exhausted

    def silence(self) -> None:
        """Send everything the thread writes from now on to scratch memory."""
        self.slot = repeat((_SCRATCH, 0, COMMIT, 0)).__next__
        self.open_words = _SCRATCH
        self.epoch = 0


def null_state(recorder: Any) -> ThreadState:
    """A state that takes everything and keeps nothing."""
    state = ThreadState(recorder, 0, _SCRATCH, ())
    state.silence()
    return state
