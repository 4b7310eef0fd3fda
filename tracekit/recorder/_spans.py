"""The hot path: begin, end and complete a span. Nothing here raises into the job or waits.

Each span type is a class of its own whose ``__enter__`` and ``__exit__`` are static closures: a
``with`` then binds no method, which halves its cost. ``local`` is a global that start(), stop()
and fork replace by a fresh ``threading.local``: each thread then finds no state, asks ``attach``
for one, and no check is needed while recording.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns as clock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracekit.model import Clock, Collective, kind_code
from tracekit.model.record import (
    DISTANCE_BITS,
    LANE_SHIFT,
    SEQ_BITS,
    Flag,
    RecordType,
    pack_collective,
    pack_open,
    pack_span,
    what_word,
)
from tracekit.recorder._attributes import write_continuations, write_values
from tracekit.recorder._intern import interner

if TYPE_CHECKING:
    from tracekit.recorder._recorder import Recorder
    from tracekit.recorder._thread import Entry, Row, ThreadState

__all__ = ["AttributedSpan", "SpanType", "Token", "clock", "span_type"]

local = threading.local()

_FARTHEST = (1 << DISTANCE_BITS) - 1
_ERROR = int(Flag.ERROR)
_SEQ_MASK = (1 << SEQ_BITS) - 1
_COLLECTIVE = int(RecordType.COLLECTIVE)

Token = tuple["Recorder", "Row", int, int, int, int, int, int, int]
"""recorder, row, what, start, step, id, parent, collective and sequence, bytes."""
Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


def attach() -> ThreadState:
    """The state of this thread, made on first use; ``_current`` puts the real one here."""
    raise NotImplementedError


def reset() -> None:
    """Let every thread ask for its state anew."""
    global local
    local = threading.local()


def write(
    state: ThreadState,
    start: int,
    duration: int,
    what: int,
    step: int,
    id_: int,
    parent: int,
    site: int = 0,
    size: int = 0,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write one record with its continuations, all in one chunk."""
    for _ in range(2):
        try:
            if attributes:
                write_continuations(state, id_, attributes)
            offset, mark, commit = state.slot()
        except StopIteration:
            state.recorder.refill(state)
            continue
        if site:
            distance = id_ - parent
            ids = id_ << DISTANCE_BITS | (distance if parent and distance <= _FARTHEST else 0)
            pack_collective(state.buffer, offset, start, duration, what, step, ids, site, size)
            state.words[mark] = commit | _COLLECTIVE
        else:
            pack_span(state.buffer, offset, start, duration, what, step, id_, parent)
            state.words[mark] = commit
        return
    state.recorder.sink.count("dropped")


def out_of_order(stack: list[Entry], popped: Entry, wanted: int) -> Entry:
    """The entry of a span that ends before one opened later (generators, coroutines)."""
    stack.append(popped)
    for place in range(len(stack) - 1, -1, -1):
        if stack[place][0] == wanted:
            return stack.pop(place)
    raise IndexError


def _enter_and_exit(what: int) -> tuple[Callable[[], None], Exit]:
    """The two halves of ``with`` for one kind and name."""

    def enter() -> None:
        try:
            state = local.state
        except AttributeError:
            state = attach()
        recorder = state.recorder
        stack = state.stack
        parent = recorder.step_id
        if stack and stack[-1][3] > parent:
            parent = stack[-1][3]
        id_ = recorder.next_id()
        try:
            row, mark = state.rows[len(stack)]
        except IndexError:
            row, mark = state.rows[-1]
        start = clock()
        pack_open(state.open_buffer, row, start, what)
        state.open_words[mark] = id_
        stack.append((what, start, recorder.step_word, id_, parent, mark))

    def exit_(
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = clock()
        try:
            state = local.state
            entry = state.stack.pop()
            if entry[0] is not what:
                entry = out_of_order(state.stack, entry, what)
            flagged, start, step, id_, parent, open_mark = entry
            if kind is not None:
                flagged |= _ERROR
            offset, mark, commit = state.slot()
        except StopIteration:
            write(state, start, end - start, flagged, step, id_, parent)
            state.open_words[open_mark] = 0
            return
        except (AttributeError, IndexError):
            return
        pack_span(state.buffer, offset, start, end - start, flagged, step, id_, parent)
        state.words[mark] = commit
        state.open_words[open_mark] = 0

    return enter, exit_


class SpanType:
    """A kind of span that is recorded again and again; make it once with ``span_type``, keep it.

    ``with span_type_:`` records a nested span of this thread. ``begin`` and ``end`` record one
    that any thread may end. ``complete`` records one whose times are known.
    """

    __slots__ = ("group", "lane", "site", "what")

    def __init__(self, what: int, lane: int, site: int, group: int) -> None:
        self.what = what
        self.lane = lane
        self.site = site
        self.group = group

    @staticmethod
    def __enter__() -> None:
        raise NotImplementedError

    @staticmethod
    def __exit__(
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    def begin(self, seq: int = 0, nbytes: int = 0) -> Token:
        """Open a span: from now on it is in the open-span table. End it with ``end``."""
        try:
            state = local.state
        except AttributeError:
            state = attach()
        recorder = state.recorder
        stack = state.stack
        parent = recorder.step_id
        if stack and stack[-1][3] > parent:
            parent = stack[-1][3]
        id_ = recorder.next_id()
        what = self.what | (self.lane or state.lane) << LANE_SHIFT
        site = self.site and self.site | seq & _SEQ_MASK
        step = recorder.step_word
        try:
            row = recorder.free_rows.pop()
        except IndexError:
            row = recorder.overflow()
        start = clock()
        pack_collective(state.open_buffer, row[0], start, what, step, parent, site, nbytes, 0)
        state.open_words[row[1]] = id_
        if site:
            recorder.group_words[self.group] = seq
        return (recorder, row, what, start, step, id_, parent, site, nbytes)

    def end(
        self, token: Token, attributes: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Close a span that ``begin`` opened, from any thread; a second end is ignored."""
        end = clock()
        recorder, row, what, start, step, id_, parent, site, nbytes = token
        try:
            state = local.state
            if state.recorder is not recorder:
                state = recorder.state()
        except AttributeError:
            attach()
            state = recorder.state()
        words = state.open_words
        mark = row[1]
        if words[mark] != id_ and (row is not recorder.spare_row or recorder.closed):
            return
        if error:
            what |= _ERROR
        write(state, start, end - start, what, step, id_, parent, site, nbytes, attributes)
        if row is not recorder.spare_row:
            words[mark] = 0
            recorder.free_rows.append(row)
        if site:
            recorder.group_words[self.group + 1] = site & _SEQ_MASK

    def complete(
        self,
        start: int,
        end: int,
        seq: int = 0,
        nbytes: int = 0,
        attributes: Mapping[str, Any] | None = None,
        parent: int = 0,
        step: int | None = None,
    ) -> None:
        """Record a span whose times (``recorder.clock``) are known; it never was open.

        ``parent`` is a span's id (0: the innermost open span); ``step`` a packed step word of
        the recorder (None: the current one). The reserved attributes ``launch_ns`` (of the same
        clock) and ``device`` become columns.
        """
        try:
            state = local.state
        except AttributeError:
            state = attach()
        recorder = state.recorder
        if not parent:
            stack = state.stack
            parent = recorder.step_id
            if stack and stack[-1][3] > parent:
                parent = stack[-1][3]
        what = self.what | self.lane << LANE_SHIFT if self.lane else self.what
        if step is None:
            step = recorder.step_word
        id_ = recorder.next_id()
        site = self.site
        if site or attributes:
            site = site and site | seq & _SEQ_MASK
            write(state, start, end - start, what, step, id_, parent, site, nbytes, attributes)
            if site:
                recorder.group_words[self.group] = recorder.group_words[self.group + 1] = seq
            return
        try:
            offset, mark, commit = state.slot()
        except StopIteration:
            write(state, start, end - start, what, step, id_, parent)
            return
        pack_span(state.buffer, offset, start, end - start, what, step, id_, parent)
        state.words[mark] = commit


class AttributedSpan(dict[str, Any]):
    """One use of a span type; the mapping is its attributes, written when the span ends."""

    __slots__ = ("of",)
    of: SpanType

    def __enter__(self) -> AttributedSpan:
        self.of.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = clock()
        try:
            state = local.state
            entry = state.stack.pop()
            if entry[0] is not self.of.what:
                entry = out_of_order(state.stack, entry, self.of.what)
            what, start, step, id_, parent, open_mark = entry
        except (AttributeError, IndexError):
            return
        if kind is not None:
            what |= _ERROR
        try:
            if write_values(state, id_, self):
                offset, mark, commit = state.slot()
                pack_span(state.buffer, offset, start, end - start, what, step, id_, parent)
                state.words[mark] = commit
                state.open_words[open_mark] = 0
                return
        except StopIteration:
            pass
        write(state, start, end - start, what, step, id_, parent, 0, 0, self)
        state.open_words[open_mark] = 0


def span_type(
    name: str,
    kind: str = "user",
    collective: Collective | None = None,
    lane: str | None = None,
    clock: Clock = Clock.HOST,
) -> SpanType:
    """The span type of this name and kind; ``lane`` where it is not the recording thread's.

    A collective's type keeps the group's last begun and last ended sequence number in the
    journal, so that a post-mortem knows them.
    """
    flags = int(Flag.DEVICE) if clock is Clock.DEVICE else 0
    what = what_word(interner.name(name), kind_code(kind), 0, flags)
    site = group = 0
    if collective is not None:
        site = interner.collective(collective) << SEQ_BITS
        group = interner.group(collective.group) * 4
    enter, exit_ = _enter_and_exit(what)
    methods = {
        "__slots__": (),
        "__enter__": staticmethod(enter),
        "__exit__": staticmethod(exit_),
    }
    type_: type[SpanType] = type("SpanType", (SpanType,), methods)
    return type_(what, interner.lane(lane) if lane else 0, site, group)
