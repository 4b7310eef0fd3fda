"""The planes of a ``.xplane.pb`` file and the lines in them, found without reading their events."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tracekit.adapters.xplane._wire import (
    Buffer,
    Damaged,
    Events,
    Ints,
    decode_events,
    fields,
    signed,
    text,
    varint,
)

__all__ = [
    "LAST_NS",
    "Line",
    "Plane",
    "Space",
    "event_stats",
    "looks_like_a_space",
    "open_space",
    "starts_of",
    "stats_of",
]

_PIECE = 4 << 20
"""Bytes of a line that are looked at together."""
_HOST, _DEVICE, _TASK = "/host:", "/device:", "Task Environment"
_PLANE = re.compile(rf"{_HOST}|{_DEVICE}|{_TASK}$|#Chip|/misc:|TraceMe|TFStreamz|Megascale")
_MOST_NAMES = 1 << 20
LAST_NS = 1 << 62
"""No time is later than that, in 2116; what says so is damaged."""
_EVENT = 0x22
"""The tag of an event in a line."""

Value = int | float | str


@dataclass(slots=True)
class Line:
    """One thread or stream; ``start_ns`` is what the offsets of its events count from."""

    id: int
    name: str = ""
    start_ns: int = 0
    start: int = 0
    end: int = 0
    """Where its bytes are."""


@dataclass(slots=True)
class Plane:
    """Lines with one clock, and what the numbers in their events stand for."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    events: dict[int, str] = field(default_factory=dict)
    """Names by the id of their metadata."""
    stats: dict[int, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    """What is said of the plane as a whole."""


@dataclass(slots=True)
class Space:
    """One file: what one host recorded in one session."""

    data: Buffer
    planes: list[Plane] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What of it cannot be used, and why."""
    damaged_events: int = 0

    def plane(self, name: str) -> Plane | None:
        """The plane with this name."""
        return next((plane for plane in self.planes if plane.name == name), None)

    @property
    def profile_start_ns(self) -> int | None:
        """When the session began, Unix time; its lines count from then."""
        plane = self.plane(_TASK)
        value = plane.values.get("profile_start_time") if plane else None
        return value if isinstance(value, int) and value > 0 else None

    def events(self, line: Line) -> Iterator[tuple[bytes, Events]]:
        """The events of a line, many at a time, with the bytes that their places refer to."""
        place, size = line.start, _PIECE
        while place < line.end:
            piece = bytes(self.data[place : min(place + size, line.end)])
            events, used, needed = _walk(piece)
            if events:
                found = decode_events(piece, np.array(events))
                self.damaged_events += found.damaged
                yield piece, found
            place, size = place + used, max(_PIECE, needed)
            if not used and (needed <= len(piece) or needed > line.end - place):
                self.wrong.append(f"line {line.name or line.id}: its last events are damaged")
                return


def _walk(data: bytes) -> tuple[list[int], int, int]:
    """Where the whole events of a piece of a line begin, how much of it they and what is between
    them take, and how many bytes the one thing after that takes."""
    events: list[int] = []
    add = events.append
    place = at = 0
    last = len(data)
    try:
        while place < last:
            at = place
            if data[at] == _EVENT:
                size = data[at + 1]
                if size < 0x80:
                    place = at + 2 + size
                else:
                    size, place = varint(data, at + 1, last)
                    place += size
                if place > last:
                    return events, at, place - at
                add(at)
                continue
            tag, start = varint(data, at, last)
            wire = tag & 7
            if wire == 0:
                _, place = varint(data, start, last)
            elif wire == 2:
                size, start = varint(data, start, last)
                place = start + size
            elif wire in (1, 5):
                place = start + (8 if wire == 1 else 4)
            else:
                return events, 0, 0
            if place > last:
                return events, at, place - at
    except (Damaged, IndexError):
        return events, at, 0  # a number goes on in the next piece, or the line ends in one
    return events, place, 0


@contextmanager
def open_space(path: Path) -> Iterator[Space]:
    """Read the outline of a file. Raises ``OSError``; whatever its content is, it says so."""
    with open(path, "rb") as file:
        if not path.stat().st_size:
            yield Space(b"", wrong=["the file is empty"])
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _outline(data)


def _outline(data: Buffer) -> Space:
    space = Space(data)
    try:
        for number, start, end in fields(data, 0, len(data)):
            if number == 1 and end:
                space.planes.append(_plane(space, start, end))
            elif number == 4 and end:
                space.hosts.append(text(data, start, end))
            elif number in (2, 3) and end:
                space.wrong.append(f"the profiler said: {text(data, start, end, 200)}")
    except Damaged as error:
        space.wrong.append(f"after {len(space.planes)} planes: {error}")
    return space


def looks_like_a_space(head: bytes) -> bool:
    """Whether a file begins as a profile does: a plane with a name that a profiler gives. A cut
    file is one all the same if the name is there."""
    if head[:1] != b"\x0a":
        return False
    try:
        length, place = varint(head, 1, len(head))
    except Damaged:
        return False
    for number, start, end in _leading(head, place, min(place + length, len(head))):
        if number == 2 and end:
            return _PLANE.match(text(head, start, end)) is not None
        if number not in (1, 2):
            break
    return False


def _leading(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The first fields of a message that may go on beyond what was read."""
    try:
        yield from fields(data, place, end)
    except Damaged:
        return


def _plane(space: Space, start: int, end: int) -> Plane:
    data, plane = space.data, Plane()
    lines: list[tuple[int, int]] = []
    stats: list[tuple[int, int]] = []
    try:
        for number, at, until in fields(data, start, end):
            if not until:
                continue
            if number == 2:
                plane.name = text(data, at, until)
            elif number == 3:
                lines.append((at, until))
            elif number == 4 and len(plane.events) < _MOST_NAMES:
                _name(data, at, until, plane.events)
            elif number == 5 and len(plane.stats) < _MOST_NAMES:
                _name(data, at, until, plane.stats)
            elif number == 6:
                stats.append((at, until))
    except Damaged as error:
        space.wrong.append(f"plane {plane.name or 'without a name'}: {error}")
    for at, until in lines:
        line = _line(data, at, until)
        if line is None:
            space.wrong.append(f"plane {plane.name}: a line is damaged")
        else:
            plane.lines.append(line)
    plane.values = stats_of(data, stats, plane.stats)
    return plane


def _name(data: Buffer, start: int, end: int, into: dict[int, str]) -> None:
    """An entry of a map from ids to metadata, of which the name is taken."""
    key = 0
    name = ""
    for number, at, until in fields(data, start, end):
        if number == 1 and not until:
            key = signed(at)
        elif number == 2 and until:
            for inner, first, last in fields(data, at, until):
                if inner == 2 and last:
                    name = text(data, first, last)
                    break
    into[key] = name


def _line(data: Buffer, start: int, end: int) -> Line | None:
    """A line's name and clock, which stand before its events."""
    line = Line(0, start=start, end=end)
    display = ""
    try:
        for number, at, until in fields(data, start, end):
            if number == 1 and not until:
                line.id = signed(at)
            elif number == 2 and until:
                line.name = text(data, at, until)
            elif number == 3 and not until:
                line.start_ns = signed(at)
            elif number == 11 and until:
                display = text(data, at, until)
            elif number == 4:
                break
    except Damaged:
        return None
    line.name = line.name or display
    return line if 0 <= line.start_ns <= LAST_NS else None


def stats_of(
    data: Buffer, places: list[tuple[int, int]], names: dict[int, str]
) -> dict[str, Value]:
    """Statistics (XStat messages at these places) by name; bytes and damaged ones are left out."""
    found: dict[str, Value] = {}
    try:
        for start, end in places:
            name, value = _stat(data, start, end, names)
            if name and value is not None:
                found[name] = value
    except Damaged:
        pass
    return found


def _stat(
    data: Buffer, start: int, end: int, names: dict[int, str]
) -> tuple[str | None, Value | None]:
    name: str | None = None
    value: Value | None = None
    for number, at, until in fields(data, start, end):
        if number == 1 and not until:
            name = names.get(signed(at))
        elif number == 2 and until - at == 8:
            value = float(struct.unpack("<d", bytes(data[at:until]))[0])
        elif number == 3 and not until:
            value = at
        elif number == 4 and not until:
            value = signed(at)
        elif number == 5 and until:
            value = text(data, at, until)
        elif number == 7 and not until:
            value = names.get(signed(at), "")
    return name, value


def event_stats(data: bytes, start: int, end: int, names: dict[int, str]) -> dict[str, Value]:
    """The statistics of one event; none where they are damaged."""
    try:
        places = [(at, until) for number, at, until in fields(data, start, end) if number == 4]
    except Damaged:
        return {}
    return stats_of(data, [place for place in places if place[1]], names)


def starts_of(events: Events, line: Line) -> Ints:
    """When events began, in the clock of their line, nanoseconds."""
    return line.start_ns + events.offset_ps // 1000
