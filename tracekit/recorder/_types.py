"""Span types: what is the same for all spans of a name and kind, and collectives' own form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.model import Clock, Collective, kind_code
from tracekit.model.record import (
    DISTANCE_BITS,
    LANE_SHIFT,
    SEQ_BITS,
    Flag,
    RecordType,
    pack_collective,
    pack_collective_begun,
    what_word,
)
from tracekit.recorder import _spans
from tracekit.recorder._intern import interner
from tracekit.recorder._spans import ERROR, SpanType, Token, clock, halves, write

__all__ = ["CollectiveType", "span_type"]

_FARTHEST = (1 << DISTANCE_BITS) - 1
_SEQ_MASK = (1 << SEQ_BITS) - 1
_COLLECTIVE = int(RecordType.COLLECTIVE)


class CollectiveType(SpanType):
    """A span type whose spans are the calls of a collective, numbered by ``seq``."""

    __slots__ = ("group", "site")

    def at(self, site: int, group: int) -> CollectiveType:
        """Say which collective it is, and where its group's numbers stand."""
        self.site = site
        self.group = group
        return self

    def begin(self, seq: int = 0, nbytes: int = 0) -> Token:
        try:
            state = _spans.local.state
        except AttributeError:
            state = _spans.attach()
        recorder = state.recorder
        parent = recorder.step_id
        if state.top.id > parent:
            parent = state.top.id
        id_ = state.next_id()
        what = self.what | (self.lane or state.lane)
        step = recorder.step_word
        site = self.site | seq & _SEQ_MASK
        try:
            row = recorder.free_rows.pop()
        except IndexError:
            row = recorder.overflow()
        start = clock()
        pack_collective_begun(
            state.open_words, row[0], start, what, step, parent, site, nbytes, 0, id_
        )
        recorder.group_words[self.group] = seq
        ids = id_ << DISTANCE_BITS
        if parent and id_ - parent <= _FARTHEST:
            ids |= id_ - parent
        return [recorder, row, what, start, step, ids, site, nbytes]

    def end(
        self,
        token: Token,
        attributes: Mapping[str, Any] | None = None,
        error: bool = False,
        at: int | None = None,
    ) -> None:
        end = clock() if at is None else at
        try:
            recorder, row, what, start, step, ids, site, nbytes = token
        except ValueError:
            return
        token.clear()
        try:
            state = _spans.local.state
            if state.recorder is not recorder:
                state = recorder.state()
        except AttributeError:
            _spans.attach()
            state = recorder.state()
        if error:
            what |= ERROR
        try:
            if attributes:
                raise StopIteration
            words, offset, mark, commit = state.slot()
            pack_collective(words, offset, start, end - start, what, step, ids, site, nbytes)
            words[mark] = commit | _COLLECTIVE
        except StopIteration:
            duration = end - start
            write(state, attributes, _COLLECTIVE, start, duration, what, step, ids, site, nbytes)
        if row is not recorder.spare_row:
            state.open_words[row[1]] = 0
            recorder.free_rows.append(row)
        recorder.group_words[self.group + 1] = site & _SEQ_MASK

    def drop(self, token: Token) -> None:
        """End a call without a record of it; that the group has it behind it stays known."""
        try:
            recorder, row, _, _, _, _, site, _ = token
        except ValueError:
            return
        token.clear()
        if row is not recorder.spare_row:
            recorder.sink.open_words[row[1]] = 0
            recorder.free_rows.append(row)
        recorder.group_words[self.group + 1] = site & _SEQ_MASK

    @staticmethod
    def amend(token: Token, seq: int | None = None, nbytes: int | None = None) -> None:
        """Correct what an open call was thought to be; its row in the open-span table stays."""
        if token:
            if seq is not None:
                token[6] = token[6] & ~_SEQ_MASK | seq & _SEQ_MASK
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
            state = _spans.local.state
        except AttributeError:
            state = _spans.attach()
        recorder = state.recorder
        if not parent:
            parent = recorder.step_id
            if state.top.id > parent:
                parent = state.top.id
        what = self.what | self.lane
        if step is None:
            step = recorder.step_word
        id_ = state.next_id()
        ids = id_ << DISTANCE_BITS
        if parent and id_ - parent <= _FARTHEST:
            ids |= id_ - parent
        site = self.site | seq & _SEQ_MASK
        try:
            if attributes:
                raise StopIteration
            words, offset, mark, commit = state.slot()
            pack_collective(words, offset, start, end - start, what, step, ids, site, nbytes)
            words[mark] = commit | _COLLECTIVE
        except StopIteration:
            duration = end - start
            write(state, attributes, _COLLECTIVE, start, duration, what, step, ids, site, nbytes)
        recorder.group_words[self.group] = recorder.group_words[self.group + 1] = seq


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
