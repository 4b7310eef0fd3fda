"""Span and event types: what is the same for all of a name and kind; collectives' own form."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracekit.model import Clock, Collective, kind_code
from tracekit.model.record import (
    DISTANCE_BITS,
    LANE_SHIFT,
    SEQ_BITS,
    Flag,
    RecordType,
    pack_collective,
    what_word,
)
from tracekit.recorder import threads
from tracekit.recorder._attributes import write_values
from tracekit.recorder._intern import interner
from tracekit.recorder.spans import ERROR, SpanType, Token, clock, halves, write

if TYPE_CHECKING:
    from tracekit.recorder._thread import ThreadState

__all__ = ["CollectiveType", "EventType", "span_type"]

_ID = 1 << DISTANCE_BITS
_FARTHEST = _ID - 1
_COLLECTIVE = int(RecordType.COLLECTIVE)
_EVENT = int(RecordType.EVENT)
_VALUES = int(RecordType.VALUES)


_bits = bytearray(8)
_number, _word = memoryview(_bits).cast("d"), memoryview(_bits).cast("q")
"""A float as a word: to pack one costs more with cold caches."""

local = threads.local


@threads.follow
def _use(current: threading.local) -> None:
    global local
    local = current


class CollectiveType(SpanType):
    """A span type whose spans are the calls of a collective, numbered by ``seq``."""

    __slots__ = ("group", "launches", "site")

    def at(self, site: int, group: int) -> CollectiveType:
        """Say which collective it is, and where its group's numbers stand."""
        self.site = site
        self.group = group
        self.launches = 0  # the schema of what buckets have
        return self

    def begin(self, seq: int = 0, nbytes: int = 0, state: ThreadState | None = None) -> Token:
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
        site = self.site | seq
        id_ = next(state.ids)
        try:
            row = recorder.free_rows.pop()
        except IndexError:
            row = recorder.overflow()
        words = state.open_words
        start = clock()
        first = row.start
        if (
            row.step is not step
            or row.parent is not parent
            or row.what != what
            or row.size != nbytes
        ):
            words[first + 1] = what
            words[first + 2] = step
            words[first + 3] = parent
            words[first + 5] = nbytes
            if words is recorder.open_words:  # not where this thread is silenced
                row.what, row.step, row.parent, row.size = what, step, parent, nbytes
        words[first] = start
        words[first + 4] = site
        words[row.mark] = id_
        recorder.group_words[self.group] = seq
        distance = id_ - parent
        ids = id_ * _ID + distance if distance <= _FARTHEST and parent else id_ * _ID
        return [recorder, row, what, start, step, ids, seq, nbytes]

    def end(
        self,
        token: Token,
        attributes: Mapping[str, Any] | None = None,
        error: bool = False,
        at: int | None = None,
    ) -> None:
        end = clock() if at is None else at
        try:
            recorder, row, what, start, step, ids, seq, nbytes = token
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
                id_ = ids >> DISTANCE_BITS
                self.shape = write_values(slots, id_, attributes, self.shape)
                if self.shape is None:
                    raise StopIteration
            words, offset, mark, commit = next(slots)
            site = self.site | seq
            pack_collective(words, offset, start, end - start, what, step, ids, site, nbytes)
            words[mark] = commit | _COLLECTIVE
        except StopIteration:
            duration, site = end - start, self.site | seq
            write(state, attributes, _COLLECTIVE, start, duration, what, step, ids, site, nbytes)
        recorder.open_words[row.mark] = 0
        if row.mark != recorder.spare_mark:
            recorder.free_rows.append(row)
        recorder.group_words[self.group + 1] = seq

    def end_of_buckets(
        self, token: Token, buckets: int, launched: int, seq: int, state: ThreadState
    ) -> None:
        """End a call that stands for several, the first of them launched before its begin.

        Only now its number is known. ``state`` is that of the thread that calls this. The same as
        ``amend`` and ``end`` with these attributes, for who comes with cold caches.
        """
        end = clock()
        recorder, row, what, start, step, ids, _, nbytes = token
        schema = self.launches or self._learn_launches()
        if row is None or state.recorder is not recorder or not schema:
            token[6] = seq
            self.end(token, {"buckets": buckets, "launch_ns": launched}, at=end)
            return
        token[1] = None
        try:
            slots = state.slots
            words, _, mark, commit = next(slots)
            words[mark - 7] = ids >> DISTANCE_BITS << DISTANCE_BITS | schema
            words[mark - 6] = buckets
            words[mark - 5] = launched
            words[mark] = commit | _VALUES
            words, _, mark, commit = next(slots)
            words[mark - 7] = start
            words[mark - 6] = end - start
            words[mark - 5] = what
            words[mark - 4] = step
            words[mark - 3] = ids
            words[mark - 2] = self.site | seq
            words[mark - 1] = nbytes
            words[mark] = commit | _COLLECTIVE
        except StopIteration:
            token[1], token[6] = row, seq
            self.end(token, {"buckets": buckets, "launch_ns": launched}, at=end)
            return
        recorder.open_words[row.mark] = 0
        if row.mark != recorder.spare_mark:
            recorder.free_rows.append(row)
        recorder.group_words[self.group + 1] = seq

    def _learn_launches(self) -> int:
        self.launches = interner.schema(("buckets", "launch_ns"), "ii")
        return self.launches

    def drop(self, token: Token) -> None:
        """End a call without a record of it; that the group has it behind it stays known."""
        try:
            recorder, row, _, _, _, _, seq, _ = token
        except ValueError:
            return
        if row is None:
            return
        token[1] = None
        recorder.open_words[row.mark] = 0
        if row.mark != recorder.spare_mark:
            recorder.free_rows.append(row)
        recorder.group_words[self.group + 1] = seq

    @staticmethod
    def amend(token: Token, seq: int | None = None, nbytes: int | None = None) -> None:
        """Correct what an open call was thought to be; its row in the open-span table stays."""
        if token:
            if seq is not None:
                token[6] = seq
            if nbytes is not None:
                token[7] = nbytes

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
        distance = id_ - parent
        ids = id_ * _ID + distance if distance <= _FARTHEST and parent else id_ * _ID
        site = self.site | seq
        try:
            if attributes:
                raise StopIteration
            words, offset, mark, commit = next(state.slots)
            pack_collective(words, offset, start, end - start, what, step, ids, site, nbytes)
            words[mark] = commit | _COLLECTIVE
        except StopIteration:
            duration = end - start
            write(state, attributes, _COLLECTIVE, start, duration, what, step, ids, site, nbytes)
        recorder.group_words[self.group] = recorder.group_words[self.group + 1] = seq


class EventType:
    """An event with a number that is recorded again and again; make it once and keep it."""

    __slots__ = ("name", "what")

    def __init__(self, name: str) -> None:
        self.name = name
        self.what = what_word(interner.name(name), kind_code("user"), 0, int(Flag.VALUE))

    def record(self, value: float, state: ThreadState | None = None) -> None:
        """The event happens now, on this thread."""
        if state is None:
            try:
                state = local.state
            except AttributeError:
                state = threads.attach()
        recorder = state.recorder
        now, id_ = clock(), next(state.ids)
        try:
            words, _, mark, commit = next(state.slots)
        except StopIteration:
            recorder.event(self.name, value)
            return
        words[mark - 7] = now
        _number[0] = value  # no call and so no other thread before it is read again
        words[mark - 6] = _word[0]
        words[mark - 5] = self.what
        words[mark - 4] = recorder.step_word
        words[mark - 3] = id_
        words[mark] = commit | _EVENT


def span_type(
    name: str,
    kind: str = "user",
    collective: Collective | None = None,
    lane: str | None = None,
    clock: Clock = Clock.HOST,
    counts: bool = True,
) -> SpanType:
    """The span type of this name and kind; ``lane`` where it is not the recording thread's.

    A collective's type keeps the group's last begun and last ended sequence number in the
    journal, so that a post-mortem knows them; not where its spans do not count as calls of the
    group, as waits for one do not and messages between two ranks do not.
    """
    flags = int(Flag.DEVICE) if clock is Clock.DEVICE else 0
    what = what_word(interner.name(name), kind_code(kind), 0, flags)
    enter, exit_, with_attributes = halves(what)
    methods = {
        "__slots__": (),
        "__enter__": staticmethod(enter),
        "__exit__": staticmethod(exit_),
    }
    lane_bits = interner.lane(lane) << LANE_SHIFT if lane else 0
    if collective is None:
        plain: type[SpanType] = type("SpanType", (SpanType,), methods)
        return plain(what, lane_bits, with_attributes)
    called: type[CollectiveType] = type("CollectiveType", (CollectiveType,), methods)
    site = interner.collective(collective) << SEQ_BITS
    row = interner.group(collective.group) if counts else 0  # 0: the row of ~other
    return called(what, lane_bits, with_attributes).at(site, row * 4)
