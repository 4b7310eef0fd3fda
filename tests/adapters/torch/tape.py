"""A sink in memory and what was recorded on it, for tests of the adapter."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tracekit import recorder
from tracekit.model import KINDS
from tracekit.model.record import NAME_MASK, NAME_SHIFT, Flag, RecordType
from tracekit.recorder import Chunk, Recorder


@dataclass(frozen=True)
class Span:
    name: str
    kind: str
    lane: str
    start: int
    duration: int
    step: int | None
    micro_step: int | None
    id: int
    parent: int
    error: bool
    device: bool
    op: str | None = None
    group: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    peer: int | None = None
    seq: int | None = None
    nbytes: int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.duration


@dataclass(frozen=True)
class Event:
    name: str
    value: float | None
    step: int | None
    micro_step: int | None
    time: int
    attributes: dict[str, Any] = field(default_factory=dict)


class _Chunk:
    def __init__(self, lane: int, epoch: int) -> None:
        self.words = memoryview(bytearray(1 << 16)).cast("q")
        self.commit = epoch << 32
        self.lane = lane


class Tape:
    """Keeps the records of one rank."""

    open_rows = 1024
    group_rows = 256

    def __init__(self) -> None:
        self.open_buffer = memoryview(bytearray((self.open_rows + 1) * 64))
        self.open_words = self.open_buffer.cast("q")
        self.group_words = memoryview(bytearray(self.group_rows * 32)).cast("q")
        self.chunks: list[_Chunk] = []
        self.texts: dict[tuple[int, int], Any] = {}
        self.facts: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}

    def chunk(self, lane: int, thread_id: int) -> Chunk:
        chunk = _Chunk(lane, len(self.chunks) + 1)
        self.chunks.append(chunk)
        return chunk.words, 0, chunk.commit

    def define(self, type_: int, id_: int, payload: bytes) -> bool:
        value = json.loads(payload)
        if type_ == 8:
            self.facts.append(value)
        else:
            self.texts[type_, id_] = value
        return True

    def count(self, counter: str, amount: int = 1) -> None:
        self.counts[counter] = self.counts.get(counter, 0) + amount

    def close(self) -> None:
        return None

    def fact(self, name: str) -> Any:
        return [fact["value"] for fact in self.facts if fact["name"] == name]

    def open_spans(self) -> list[str]:
        """The names of the spans that are open."""
        rows = range(0, self.open_rows * 8, 8)
        whats = [self.open_words[row + 1] for row in rows if self.open_words[row + 7]]
        return [str(self.texts[2, what >> NAME_SHIFT & NAME_MASK]) for what in whats]

    def spans(self) -> list[Span]:
        """Every span, in the order of its start."""
        found = [span for chunk in list(self.chunks) for span in self._in_chunk(chunk)]
        return sorted(found, key=lambda span: (span.start, span.id))

    def events(self, name: str | None = None) -> list[Event]:
        """The events, in the order of their times."""
        found = [event for chunk in list(self.chunks) for event in self._events_in(chunk)]
        found = [event for event in found if name is None or event.name == name]
        return sorted(found, key=lambda event: event.time)

    def _events_in(self, chunk: _Chunk) -> Iterator[Event]:
        attributes: dict[int, dict[str, Any]] = {}
        words = chunk.words
        for slot in range(0, len(words), 8):
            commit = words[slot + 7]
            if commit >> 32 != chunk.commit >> 32:
                return
            time, number, what, step, id_ = (words[slot + place] for place in range(5))
            if commit & 63 == RecordType.VALUES:
                payload = [words[slot + place] for place in range(1, 7)]
                values = self._values(time & 0xFFFFFF, payload)
                attributes.setdefault(time >> 24, {}).update(values)
            elif commit & 63 == RecordType.EVENT:
                value: float = struct.unpack("d", struct.pack("q", number))[0]
                yield Event(
                    name=self.texts[2, what >> NAME_SHIFT & NAME_MASK],
                    value=value if what & Flag.VALUE else None,
                    step=(step >> 16) - 1 if step >> 16 else None,
                    micro_step=(step & 0xFFFF) - 1 if step & 0xFFFF else None,
                    time=time,
                    attributes=attributes.pop(id_, {}),
                )

    def _in_chunk(self, chunk: _Chunk) -> Iterator[Span]:
        attributes: dict[int, dict[str, Any]] = {}
        words = chunk.words
        for slot in range(0, len(words), 8):
            commit = words[slot + 7]
            if commit >> 32 != chunk.commit >> 32:
                return
            type_ = commit & 63
            record = [words[slot + place] for place in range(8)]
            if type_ == RecordType.VALUES:
                values = self._values(record[0] & 0xFFFFFF, record[1:7])
                attributes.setdefault(record[0] >> 24, {}).update(values)
            elif type_ in (RecordType.SPAN, RecordType.COLLECTIVE):
                yield self._span(chunk, record, type_ == RecordType.COLLECTIVE, attributes)

    def _values(self, schema: int, payload: list[int]) -> dict[str, Any]:
        keys, letters = self.texts[5, schema]
        read: dict[str, Any] = {
            "i": int,
            "b": bool,
            "n": lambda _: None,
            "s": lambda word: self.texts[6, word],
            "f": lambda word: struct.unpack("d", struct.pack("q", word))[0],
        }
        return {
            key: read[letter](word)
            for key, letter, word in zip(keys, letters, payload, strict=False)
        }

    def _span(
        self, chunk: _Chunk, record: list[int], collective: bool, attributes: dict[int, Any]
    ) -> Span:
        start, duration, what, step = record[:4]
        id_, parent = record[4:6]
        more: dict[str, Any] = {}
        if collective:
            distance = id_ & 0xFFFFFF
            id_ >>= 24
            parent = id_ - distance if distance else 0
            op, group, size, dtype, peer = self.texts[4, record[5] >> 48]
            more = {"op": op, "group": group, "group_size": size, "dtype": dtype, "peer": peer}
            more |= {"seq": record[5] & (1 << 48) - 1, "nbytes": record[6]}
        return Span(
            name=self.texts[2, what >> NAME_SHIFT & NAME_MASK],
            kind=KINDS[what & 0xFF],
            lane=self.texts[3, what >> 32 or chunk.lane],
            start=start,
            duration=duration,
            step=(step >> 16) - 1 if step >> 16 else None,
            micro_step=(step & 0xFFFF) - 1 if step & 0xFFFF else None,
            id=id_,
            parent=parent,
            error=bool(what & Flag.ERROR),
            device=bool(what & Flag.DEVICE),
            attributes=attributes.pop(id_, {}),
            **more,
        )


@contextmanager
def recording(rank: int = 0, world_size: int = 1) -> Iterator[Tape]:
    """Record on a tape what runs inside."""
    tape = Tape()
    made = Recorder(tape, rank, world_size)
    recorder.install(made)
    try:
        yield tape
    finally:
        made.close()
        recorder.remove(made)
