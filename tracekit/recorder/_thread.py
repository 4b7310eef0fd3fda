"""What one thread holds of one recorder: its chunk, its stack of open spans, its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from tracekit.model.record import COMMIT, RECORD_BYTES, RECORD_WORDS

if TYPE_CHECKING:
    from tracekit.recorder._recorder import Recorder
    from tracekit.recorder._sink import Chunk

__all__ = [
    "ROWS_PER_THREAD",
    "THREAD_BLOCKS",
    "Frame",
    "Place",
    "Row",
    "Slots",
    "ThreadState",
    "innermost",
    "null_state",
    "place_of",
    "surfaces",
]

THREAD_BLOCKS = 24
ROWS_PER_THREAD = 16
# One scratch for all that is silenced. It is as large as a chunk and as the open-span table, so a
# thread that is silenced between two stores still stores inside it.
_SCRATCH = memoryview(bytearray(1025 * RECORD_BYTES)).cast("q")


Place = tuple[int, int]
"""Byte offset of a row in the open-span table, and the word of its commit word."""
Slots = Iterator[tuple[memoryview, int, int, int]]
"""The places of a chunk's records to come: the chunk, the record's byte offset, the place of its
commit word, and that word. Both the iterator and what it gives stay valid when a record that a
signal handler makes meanwhile fills the chunk."""


def place_of(number: int) -> Place:
    """Where the row with this number is."""
    return number * RECORD_BYTES, number * RECORD_WORDS + COMMIT


class Row:
    """A row of the open-span table for spans that any thread may end.

    It remembers what its last span wrote, since the next one is likely to write most of it again:
    three stores instead of eight. ``size`` is -1 where that was no collective.
    """

    __slots__ = ("mark", "offset", "parent", "size", "start", "step", "what")

    def __init__(self, place: Place) -> None:
        self.offset, self.mark = place
        self.start = self.offset // 8
        self.what = -1
        self.step = self.parent = 0
        self.size = -1


class Frame:
    """A span that is open on a thread, or was: frames are used again, so none is made per span.

    ``outer`` and ``deeper`` are the frames around it; ``row`` and ``mark`` are the places of its
    first and last word in the open-span table.
    """

    __slots__ = ("deeper", "id", "mark", "outer", "parent", "row", "start", "step", "what")

    def __init__(self, row: Place, outer: Frame | None = None) -> None:
        self.row, self.mark = row[0] // 8, row[1]
        self.outer = outer
        self.deeper: Frame | None = None
        self.what = -1  # no span's; a row keeps the last one's, so it is written when it changes
        self.start = self.step = self.id = self.parent = 0


def innermost(top: Frame, what: int) -> Frame:
    """The innermost open frame of a span that ends before one opened later, put on the top.

    Raises ``LookupError`` when no such span is open.
    """
    frame: Frame | None = top
    while frame is not None and frame.what is not what:
        frame = frame.outer
    if frame is None or not surfaces(top, frame):
        raise LookupError
    return frame


def surfaces(top: Frame, frame: Frame) -> bool:
    """Put the frame of a span on the top that ends before one opened later, if it is open.

    Generators and coroutines do this.
    """
    one: Frame | None = top
    while one is not None and one is not frame:
        one = one.outer
    outer, inner = frame.outer, frame.deeper
    if one is None or outer is None or inner is None:
        return False
    outer.deeper, inner.outer = inner, outer
    frame.outer, frame.deeper = top, top.deeper
    if top.deeper is not None:
        top.deeper.outer = frame
    top.deeper = frame
    return True


EXHAUSTED: Slots = iter(())
"""The slots of a chunk that must not be written any more."""


@cache
def _places(first: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Byte offsets of the records of a chunk, and the words of their commit words."""
    offsets = tuple(range(first, size, RECORD_BYTES))
    return offsets, tuple(offset // 8 + COMMIT for offset in offsets)


class ThreadState:
    """A thread's place to write; swapping its fields silences the thread without any check.

    ``lane`` stands where a ``what`` word has it. ``slots`` gives the place of the next record and
    ends with the chunk. ``top`` is the innermost open span; the outermost frame stands for none.
    ``pending`` is an adapter's: the call of this thread that is over when it has been waited for.
    """

    __slots__ = (
        "__weakref__",
        "epoch",
        "ids",
        "lane",
        "open_words",
        "pending",
        "places",
        "recorder",
        "refilling",
        "slots",
        "top",
    )

    def __init__(
        self,
        recorder: Recorder,
        lane: int,
        open_words: memoryview,
        places: Iterable[Place],
    ) -> None:
        self.recorder = recorder
        self.ids = recorder.ids
        self.lane = lane
        self.open_words = open_words
        self.top = Frame((0, COMMIT))
        self.places = iter(places)
        self.pending: Any = None
        self.slots: Slots = EXHAUSTED
        self.epoch = 0
        self.refilling = False

    def deepen(self, outer: Frame) -> Frame:
        """The frame inside one that has none yet; beyond the thread's rows they share the spare."""
        frame = Frame(next(self.places, self.recorder.spare_place), outer)
        outer.deeper = frame
        return frame

    def use(self, chunk: Chunk) -> None:
        """Write into this chunk from now on."""
        words, first, commit = chunk
        offsets, marks = _places(first, len(words) * 8)
        commits = count(commit + first, RECORD_BYTES)
        self.epoch = commit >> 32
        self.slots = zip(repeat(words), offsets, marks, commits)

    def retire(self) -> None:
        """Make the next record take a fresh chunk; called from any thread."""
        self.slots = EXHAUSTED

    def silence(self) -> None:
        """Send everything the thread writes from now on to scratch memory."""
        self.slots = repeat((_SCRATCH, 0, COMMIT, 0))
        self.open_words = _SCRATCH
        self.epoch = 0


def null_state(recorder: Any) -> ThreadState:
    """A state that takes everything and keeps nothing."""
    state = ThreadState(recorder, 0, _SCRATCH, ())
    state.silence()
    return state
