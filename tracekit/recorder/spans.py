"""The hot path: begin, end and complete a span. Nothing here raises into the job or waits.

Each span type is a class of its own whose ``__enter__`` and ``__exit__`` are static closures: a
``with`` then binds no method, which halves its cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns as clock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracekit.model.record import (
    DISTANCE_BITS,
    Flag,
    pack_collective,
    pack_span,
)
from tracekit.recorder import threads
from tracekit.recorder._attributes import Shape, write_continuations, write_values
from tracekit.recorder._thread import innermost

if TYPE_CHECKING:
    from tracekit.recorder._thread import ThreadState

__all__ = [
    "AttributedSpan",
    "SpanType",
    "Token",
    "clock",
    "halves",
    "write",
]

local = threads.local


@threads.follow
def _use(current: threading.local) -> None:
    global local
    local = current


ERROR = int(Flag.ERROR)

Token = list[Any]
"""A span that was begun: recorder, row, what, start, step, id and parent; of a collective then word
4 of its record, sequence number and bytes. The row is None once it has ended."""
Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


def write(
    state: ThreadState,
    attributes: Mapping[str, Any] | None,
    type_: int,
    start: int,
    duration: int,
    what: int,
    step: int,
    ids: int,
    origin: int,
    size: int = 0,
) -> None:
    """Write one record with its continuations, all in one chunk; the way for all that is rare.

    ``ids``, ``origin`` and ``size`` are words 4 to 6 of the record.
    """
    for _ in range(3):
        try:
            slots = state.slots
            if attributes:
                write_continuations(slots, ids >> DISTANCE_BITS if type_ else ids, attributes)
            words, offset, mark, commit = next(slots)
        except StopIteration:
            state.recorder.refill(state)
            continue
        except Exception:  # the span is worth more than its attributes
            attributes = None
            continue
        pack_collective(words, offset, start, duration, what, step, ids, origin, size)
        words[mark] = commit | type_
        return
    state.recorder.sink.count("dropped")


def halves(what: int) -> tuple[Callable[[], None], Exit, Callable[[], type[AttributedSpan]]]:
    """The two halves of ``with`` for one kind and name, and how to make those with attributes."""

    def enter() -> None:
        try:
            state = local.state
        except AttributeError:
            state = threads.attach()
        recorder = state.recorder
        outer = state.top
        frame = outer.deeper or state.deepen(outer)
        parent = recorder.step_id
        if outer.id > parent:
            parent = outer.id
        id_ = next(state.ids)
        start = clock()
        # From here on no call: a span that a signal handler records must not meet half a frame.
        words = state.open_words
        if frame.what is not what:
            frame.what = words[frame.row + 1] = what
        words[frame.row] = start
        words[frame.mark] = id_
        frame.start = start
        frame.step = recorder.step_word
        frame.id = id_
        frame.parent = parent
        state.top = frame

    def exit_(
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = clock()
        try:
            state = local.state
            frame = state.top
            if frame.what is not what:
                frame = innermost(frame, what)
            start = frame.start
            flagged = what if kind is None else what | ERROR
            words, offset, mark, commit = next(state.slots)
            pack_span(
                words, offset, start, end - start, flagged, frame.step, frame.id, frame.parent
            )
            words[mark] = commit
        except StopIteration:
            write(state, None, 0, start, end - start, flagged, frame.step, frame.id, frame.parent)
        except (AttributeError, LookupError):
            return
        state.top = frame.outer
        state.open_words[frame.mark] = 0

    def with_attributes() -> type[AttributedSpan]:
        shape: Shape | None = None

        class Attributed(AttributedSpan):
            __slots__ = ()
            __enter__ = staticmethod(enter)

            def __exit__(
                self,
                kind: type[BaseException] | None,
                error: BaseException | None,
                traceback: TracebackType | None,
            ) -> None:
                nonlocal shape
                end = clock()
                try:
                    state = local.state
                    frame = state.top
                    if frame.what is not what:
                        frame = innermost(frame, what)
                    start, id_ = frame.start, frame.id
                    flagged = what if kind is None else what | ERROR
                    slots = state.slots
                    shape = write_values(slots, id_, self.attributes, shape)
                    if shape is None:
                        raise StopIteration
                    words, offset, mark, commit = next(slots)
                    pack_span(
                        words, offset, start, end - start, flagged, frame.step, id_, frame.parent
                    )
                    words[mark] = commit
                except StopIteration:
                    duration, step, parent = end - start, frame.step, frame.parent
                    write(state, self.attributes, 0, start, duration, flagged, step, id_, parent)
                except (AttributeError, LookupError):
                    return
                state.top = frame.outer
                state.open_words[frame.mark] = 0

        return Attributed

    return enter, exit_, with_attributes


class SpanType:
    """A kind of span that is recorded again and again; make it once with ``span_type``, keep it.

    ``with span_type_:`` records a nested span of this thread. ``begin`` and ``end`` record one
    that any thread may end. ``complete`` records one whose times are known.
    """

    __slots__ = ("attributed", "lane", "placed", "shape", "what")

    def __init__(
        self, what: int, lane: int, with_attributes: Callable[[], type[AttributedSpan]]
    ) -> None:
        self.what = what
        self.lane = lane
        self.shape: Shape | None = None
        """Of the attributes that the last span of this type had."""
        self.placed = what | lane if lane else 0
        """``what`` with the lane, where that is not the recording thread's."""
        self.attributed: Callable[[], AttributedSpan]
        """Makes one use with attributes; the class for it is made at the first."""

        def first() -> AttributedSpan:
            self.attributed = with_attributes()
            return self.attributed()

        self.attributed = first

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

    def begin(self, seq: int = 0, nbytes: int = 0, state: ThreadState | None = None) -> Token:
        """Open a span: from now on it is in the open-span table. End it with ``end``.

        Sequence number (below 2**48) and bytes are for the types of collectives.
        """
        if state is None:
            try:
                state = local.state
            except AttributeError:
                state = threads.attach()
        recorder = state.recorder
        parent = recorder.step_id
        if state.top.id > parent:
            parent = state.top.id
        what = self.placed or self.what | state.lane
        step = recorder.step_word
        id_ = next(state.ids)
        try:
            row = recorder.free_rows.pop()
        except IndexError:
            row = recorder.overflow()
        words = state.open_words
        start = clock()
        first = row.start
        if row.step is not step or row.parent is not parent or row.what != what or row.size >= 0:
            words[first + 1] = what
            words[first + 2] = step
            words[first + 3] = parent
            if row.size >= 0:
                words[first + 4] = words[first + 5] = 0
            if words is recorder.open_words:  # not where this thread is silenced
                row.what, row.step, row.parent, row.size = what, step, parent, -1
        words[first] = start
        words[row.mark] = id_
        return [recorder, row, what, start, step, id_, parent]

    def tile(self, token: Token, step: int, state: ThreadState) -> Token | None:
        """End an open span of this type and begin the next one at the same instant, in its row.

        ``step`` is the new one's step word; ``state`` that of the thread that calls this. The
        token keeps its end in place of the parent. None where that is not possible.
        """
        recorder, row, what, start, before, id_, parent = token
        mine = self.placed or self.what | state.lane
        if row is None or state.recorder is not recorder or state.top.id != parent or what != mine:
            return None
        now = clock()
        try:
            words, _, mark, commit = next(state.slots)
        except StopIteration:
            return None
        token[6] = now
        token[1] = None
        words[mark - 7] = start
        words[mark - 6] = now - start
        words[mark - 5] = what
        words[mark - 4] = before
        words[mark - 3] = id_
        words[mark - 2] = parent
        words[mark] = commit
        following = next(state.ids)
        words, first = state.open_words, row.start
        words[row.mark] = 0
        words[first] = now
        words[first + 2] = row.step = step
        words[row.mark] = following
        return [recorder, row, what, now, step, following, parent]

    def end(
        self,
        token: Token,
        attributes: Mapping[str, Any] | None = None,
        error: bool = False,
        at: int | None = None,
    ) -> None:
        """Close a span that ``begin`` opened, from any thread; a second end is ignored.

        ``at`` is when it ended (``clock``), where somebody else took the time.
        """
        end = clock() if at is None else at
        try:
            recorder, row, what, start, step, id_, parent = token
        except ValueError:
            return
        if row is None:
            return
        token[1] = None
        try:
            state = local.state
            if state.recorder is not recorder:
                state = recorder.state()
        except AttributeError:
            threads.attach()
            state = recorder.state()
        if error:
            what |= ERROR
        try:
            slots = state.slots
            if attributes:
                self.shape = write_values(slots, id_, attributes, self.shape)
                if self.shape is None:
                    raise StopIteration
            words, offset, mark, commit = next(slots)
            pack_span(words, offset, start, end - start, what, step, id_, parent)
            words[mark] = commit
        except StopIteration:
            write(state, attributes, 0, start, end - start, what, step, id_, parent)
        recorder.open_words[row.mark] = 0
        if row.mark != recorder.spare_mark:
            recorder.free_rows.append(row)

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
            state = threads.attach()
        recorder = state.recorder
        if not parent:
            parent = recorder.step_id
            if state.top.id > parent:
                parent = state.top.id
        what = self.placed or self.what
        if step is None:
            step = recorder.step_word
        id_ = next(state.ids)
        try:
            if attributes:
                raise StopIteration
            words, offset, mark, commit = next(state.slots)
            pack_span(words, offset, start, end - start, what, step, id_, parent)
            words[mark] = commit
        except StopIteration:
            write(state, attributes, 0, start, end - start, what, step, id_, parent)


class AttributedSpan:
    """One use of a span type; its attributes are written when the span ends."""

    __slots__ = ("attributes",)
    attributes: Mapping[str, Any]

    @staticmethod
    def __enter__() -> None:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError
