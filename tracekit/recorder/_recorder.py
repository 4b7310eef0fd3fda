"""The recorder of one rank: ids, steps, threads and their chunks, on top of a sink."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import get_native_id
from time import monotonic_ns as clock
from typing import Any

from tracekit.model import kind_code
from tracekit.model.record import (
    LANE_SHIFT,
    STEP_BITS,
    Flag,
    RecordType,
    pack_begun,
    pack_event,
    what_word,
)
from tracekit.recorder._attributes import (
    dump_json,
    encode_text,
    write_bytes,
    write_continuations,
)
from tracekit.recorder._intern import interner
from tracekit.recorder._overhead import is_untraced, pause
from tracekit.recorder._sink import Sink
from tracekit.recorder._thread import (
    ROWS_PER_THREAD,
    THREAD_BLOCKS,
    Place,
    Row,
    ThreadState,
    null_state,
    place_of,
)
from tracekit.recorder._types import span_type
from tracekit.recorder.spans import Token

__all__ = ["Home", "Recorder"]

OWN_THREADS = "tracekit-"
"""How the names of tracekit's own threads begin. They record nothing: one that is in the middle of
making room for records must not need it."""
_MOST_FOREIGN = 64
_FOREIGN_WITH_ROWS = 8
_NO_STEP = 0
_KNOWN_STEPS = 256
_MOST_STEPS = (1 << 63 - STEP_BITS) - 1
_FACT = 8
_EVENT = int(RecordType.EVENT)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a rank's files lie, for what is written beside its journal."""

    attempt_dir: Path
    stem: str
    """How the names of this rank's files begin."""
    clock_offset_ns: int
    """What the run adds to this clock domain's monotonic times to make Unix times of them."""


class Recorder:
    """Everything one rank records goes through one of these.

    ``rank`` and ``world_size`` may become known later than the first record; ``bind`` says them.
    """

    def __init__(self, sink: Sink, rank: int, world_size: int, attempt: int = 0) -> None:
        places = [place_of(number) for number in range(sink.open_rows)]
        shared = THREAD_BLOCKS * ROWS_PER_THREAD
        # First, and so side by side in memory, what is needed for each span.
        self.ids = count(1)
        self.step_word = _NO_STEP
        self.step_id = 0
        self.free_rows = [Row(place) for place in places[: shared - 1 : -1]]
        self.open_words = sink.open_words
        self.group_words = sink.group_words
        self.spare_place: Place = place_of(sink.open_rows)
        self.spare_mark = self.spare_place[1]
        self.sink = sink
        self.rank = rank
        self.world_size = world_size
        self.attempt = attempt
        self.home: Home | None = None
        self.closed = False
        self.user_steps = False
        self.next_step = 0
        """The number of the next step that nobody gives one."""
        self._blocks = [
            tuple(places[first : first + ROWS_PER_THREAD])
            for first in range(shared - ROWS_PER_THREAD, -1, -ROWS_PER_THREAD)
        ]
        self._states: dict[int, weakref.ref[ThreadState]] = {}
        self._local = threading.local()
        # A thread that is not Python's (one of gloo's, which ends a bucket) forgets its locals
        # after each call into Python. Without this it would take a fresh chunk every time.
        self._foreign: dict[int, ThreadState] = {}
        self.measures_overhead = False
        self._step: Token | None = None
        self._steps: deque[Token] = deque(maxlen=_KNOWN_STEPS)
        """The newest; one that has ended has no row, and its end where its parent was."""
        self._step_type = span_type("train_step", "step")
        self._untraced_type = span_type("untraced_step", "step")
        self._null = null_state(self)
        self._retired = 0
        interner.listen(sink)

    # Threads

    def state(self) -> ThreadState:
        """This thread's state of this recorder; silent once the recorder is closed."""
        if self.closed:
            return self._null
        try:
            state: ThreadState = self._local.state
        except AttributeError:
            state = self._local.state = self._new_state()
        return state

    def _new_state(self) -> ThreadState:
        """Make a state. No lock is held here or anywhere in the recorder: a garbage collection or
        a signal may record something at any moment, in a thread that holds what another needs."""
        thread = threading.current_thread()
        if thread.name.startswith(OWN_THREADS):
            return null_state(self)
        foreign = isinstance(thread, threading._DummyThread)
        if foreign and thread.ident in self._foreign:
            return self._foreign[thread.ident]
        lane = interner.lane(f"thread:{thread.name}")
        block: tuple[Place, ...] = ()
        # What is kept of foreign threads stays after them: rows are few, and others need them.
        if not foreign or len(self._foreign) < _FOREIGN_WITH_ROWS:
            with suppress(IndexError):  # the others have them all
                block = self._blocks.pop()
        state = ThreadState(self, lane << LANE_SHIFT, self.open_words, block)
        for offset, mark in block:
            state.open_words[mark] = 0  # a thread that died inside a span has left it there
            pack_begun(state.open_words, offset, 0, 0, 0, 0, 0, 0, lane, 0)
        key = id(state)

        def released(_: object) -> None:
            self._states.pop(key, None)
            if block:
                self._blocks.append(block)

        self._states[key] = weakref.ref(state, released)
        if foreign and thread.ident is not None and len(self._foreign) < _MOST_FOREIGN:
            self._foreign[thread.ident] = state
        if self.closed:  # asked after it can be found: close() silences it, or this does
            state.silence()
        return state

    def refill(self, state: ThreadState) -> None:
        """Give a thread a fresh chunk, whose first record names the thread.

        A record made while the thread is inside this very function (a garbage collection that
        the refill itself triggers) is dropped and counted.
        """
        if self.closed:
            state.silence()
            return
        if state.refilling:
            self.sink.count("dropped")
            return
        state.refilling = True
        try:
            state.use(self.sink.chunk(state.lane >> LANE_SHIFT, get_native_id()))
            if self.closed:
                state.silence()
            elif state.epoch < self._retired:  # said while this thread took the chunk
                state.retire()
        except Exception:
            state.silence()
        finally:
            state.refilling = False

    def retire_before(self, epoch: int) -> None:
        """Make threads leave chunks of segments before this epoch at their next record."""
        self._retired = epoch
        for state in self._living():
            if 0 < state.epoch < epoch:
                state.retire()

    def _living(self) -> list[ThreadState]:
        """The states of all threads that live; from a copy, which threads cannot change."""
        states = [reference() for reference in self._states.copy().values()]
        return [state for state in states if state is not None]

    def overflow(self) -> Row:
        """The row for a span that finds the open-span table full; nobody reads it."""
        self.sink.count("open_overflow")
        return Row(self.spare_place)

    # Steps

    @property
    def step(self) -> int | None:
        """The number of the step that is open, if any."""
        word = self.step_word >> STEP_BITS
        return word - 1 if word else None

    def begin_step(self, step: int | None = None) -> None:
        """Open a step; one that is still open ends here, so steps tile.

        Without a number it is the one after the last.
        """
        if step is None:
            step = self.next_step
        if not 0 <= step < _MOST_STEPS:
            raise ValueError(f"step {step} is not a number from 0 to {_MOST_STEPS - 1}")
        if self._step is not None:
            self.end_step()
        self.next_step = step + 1
        self.step_word = (step + 1) << STEP_BITS
        if self.measures_overhead:
            pause.on = pause.heeded and is_untraced(step)
        self._step = (self._untraced_type if pause.on else self._step_type).begin()
        self.step_id = self._step[5]
        self._steps.append(self._step)

    def next_step_here(self, state: ThreadState) -> None:
        """Begin the next step, for who holds the state of its thread: costs half of that."""
        number, token = self.next_step, self._step
        if token is not None and number < _MOST_STEPS and not self.measures_overhead:
            word = (number + 1) << STEP_BITS
            following = self._step_type.tile(token, word, state)
            if following is not None:
                self.next_step = number + 1
                self.step_word = word
                self._step = following
                self.step_id = following[5]
                self._steps.append(following)
                return
        self.begin_step()

    def end_step(self, error: bool = False) -> None:
        """Close the open step; without one nothing happens."""
        token, self._step = self._step, None
        if token is not None:
            self.step_id = 0
            now = clock()
            ends = token.copy()
            token[6], token[1] = now, None
            self._step_type.end(ends, error=error, at=now)
        self.step_word = _NO_STEP

    def step_at(self, time_ns: int) -> tuple[int, int]:
        """The step word and the step's id at a time of ``clock``, from the newest 256 steps.

        Zeros where no step was open, or none that is still known.
        """
        for start, end, word, id_ in reversed(self._known_steps()):
            if start <= time_ns and (not end or time_ns <= end):
                return word, id_
        return _NO_STEP, 0

    def ended_steps(self) -> list[tuple[int, int, int]]:
        """The newest steps that have ended: number, begin and end by ``clock``."""
        return [
            ((word >> STEP_BITS) - 1, start, end)
            for start, end, word, _ in self._known_steps()
            if end
        ]

    def _known_steps(self) -> list[tuple[int, int, int, int]]:
        """Of the newest steps begin, end (0 while open), step word and id."""
        try:
            steps = self._steps.copy()
        except RuntimeError:  # a step began meanwhile
            return []
        return [
            (start, 0 if row is not None else end, word, id_)
            for _, row, _, start, word, id_, end in steps
        ]

    def set_micro_step(self, micro_step: int | None) -> None:
        """Number the forward/backward inside the step that spans belong to from now on."""
        step = self.step_word >> STEP_BITS << STEP_BITS
        self.step_word = step if micro_step is None else step | (micro_step + 1 & 0xFFFF)

    # Events and facts

    def event(
        self,
        name: str,
        value: float | None = None,
        text: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        """Record an instant with an optional number, text and attributes."""
        now = clock()
        state = self.state()
        id_ = next(self.ids)
        flags = int(Flag.VALUE) if value is not None else 0
        what = what_word(interner.name(name), kind_code("user"), 0, flags)
        data = None if text is None else encode_text(text)
        for _ in range(2):
            try:
                slots = state.slots
                if data is not None:
                    write_bytes(slots, id_, RecordType.TEXT, data)
                if attributes:
                    write_continuations(slots, id_, attributes)
                words, offset, mark, commit = next(slots)
            except StopIteration:
                self.refill(state)
                continue
            number = 0.0 if value is None else value
            pack_event(words, offset, now, number, what, self.step_word, id_)
            words[mark] = commit | _EVENT
            return
        self.sink.count("dropped")

    def fact(self, name: str, value: Any, source: str | None = None) -> None:
        """Record what is neither interval nor instant; ``value`` is anything JSON can hold."""
        if not self.closed:
            fact = {"name": name, "value": value, "time_ns": clock(), "source": source}
            self.sink.define(_FACT, 0, dump_json(fact))

    # The end

    def close(self) -> None:
        """Silence every thread and close the sink; open spans stay open in the journal."""
        if self.closed:
            return
        self.end_step()
        self.closed = True
        if self.measures_overhead:
            pause.on = False
        for state in self._living():
            state.silence()
        self._forget_tables()
        interner.forget(self.sink)
        self.sink.close()

    def abandon(self) -> None:
        """In a forked child: never touch the parent's journal, not even to close it."""
        self.closed = True
        self._states.clear()
        self._foreign.clear()
        self._forget_tables()

    def _forget_tables(self) -> None:
        self.open_words = memoryview(bytearray(len(self.open_words) * 8)).cast("q")
        self.group_words = memoryview(bytearray(len(self.group_words) * 8)).cast("q")
