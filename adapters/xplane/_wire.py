"""Protobuf's wire format, as far as a profile needs it: no schema, no package, no copy of the file.

A line of a profile holds millions of events of four numbers each; these are decoded in bulk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Buffer", "Damaged", "Events", "decode_events", "fields", "signed", "text"]

Ints = npt.NDArray[np.int64]
_PAD = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_FIELDS = 1000
"""Of one event; profilers write a dozen."""
_MOST = 10
"""Bytes of the longest varint."""


class Buffer(Protocol):
    """Bytes in memory or in a mapped file."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: Any, /) -> Any: ...


class Damaged(ValueError):
    """The bytes are no message, or not all of it."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events in bulk: which, when, how long (picoseconds), and where their bytes are."""

    id: Ints
    offset_ps: Ints
    duration_ps: Ints
    start: Ints
    end: Ints
    damaged: int = 0


def varint(data: Buffer, place: int, end: int) -> tuple[int, int]:
    """A number and the place after it."""
    value = shift = 0
    for at in range(place, min(end, place + _MOST)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + 1
        shift += 7
    raise Damaged("a number is cut")


def fields(data: Buffer, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message: number, then the value and 0, or where its bytes start and end.

    Numbers of fixed width are passed over but for doubles, which come as their bytes. Raises
    ``Damaged`` where a field reaches beyond the message.
    """
    while place < end:
        tag, place = varint(data, place, end)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, place = varint(data, place, end)
            yield number, value, 0
            continue
        if wire == _BYTES:
            size, place = varint(data, place, end)
        elif wire == _FIXED64:
            size = 8
        elif wire == _FIXED32:
            size = 4
        else:
            raise Damaged(f"unknown wire type {wire}")
        if number == 0 or size > end - place:
            raise Damaged("cut, or not a message of this kind")
        yield number, place, place + size
        place += size


def signed(value: int) -> int:
    """A 64-bit number as int64 holds it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def text(data: Buffer, start: int, end: int, most: int = 1024) -> str:
    """Text, cut where it is longer than anybody reads; what is no UTF-8 is replaced."""
    return bytes(data[start : min(end, start + most)]).decode("utf-8", "replace")


def decode_events(data: bytes, places: Ints) -> Events:
    """Decode many XEvent messages at once, from the places of their tags; one that is damaged is
    left out and counted."""
    count = len(places)
    padded = np.frombuffer(data + bytes(_PAD), np.uint8)
    last = len(data)
    sizes, starts = _varints(padded, places + 1, last)
    ends = starts + sizes
    found = {number: np.zeros(count, np.int64) for number in (1, 2, 3)}
    bad = np.zeros(count, bool)
    place = starts.copy()
    alive = np.flatnonzero(place < ends)
    for _ in range(_MOST_FIELDS):
        if not len(alive):
            break
        tag, at = _varints(padded, place[alive], last)
        wire, number = tag & 7, tag >> 3
        value, after = _varints(padded, at, last)
        for known, into in found.items():
            chosen = (number == known) & (wire == _VARINT)
            into[alive[chosen]] = value[chosen]
        size = np.where(wire == _BYTES, value, 0)
        fixed = np.where(wire == _FIXED64, 8, np.where(wire == _FIXED32, 4, -1))
        wrong = ((wire == _BYTES) & ((size < 0) | (size > last))) | (number == 0)
        wrong |= (wire != _BYTES) & (wire != _VARINT) & (fixed < 0)
        after = np.where(fixed >= 0, at + fixed, after + np.where(wrong, 0, size))
        wrong |= after > ends[alive]
        bad[alive[wrong]] = True
        place[alive] = after
        alive = alive[~wrong & (after < ends[alive])]
    bad[alive] = True
    # Times no clock can show would overflow sums: seventy days are more than any profile.
    bad |= (found[3] < 0) | (np.abs(found[2]) > 1 << 62) | (found[3] > 1 << 62)
    good = ~bad
    return Events(
        found[1][good], found[2][good], found[3][good], starts[good], ends[good], int(bad.sum())
    )


def _varints(padded: npt.NDArray[np.uint8], place: Ints, last: int) -> tuple[Ints, Ints]:
    """Numbers at many places, and the places after them; cut ones end beyond all messages."""
    place = np.minimum(place, last)
    byte = padded[place].astype(np.int64)
    value = byte & 0x7F
    after = place + 1
    going = np.flatnonzero(byte >= 0x80)
    for shift in range(7, 7 * _MOST, 7):
        if not len(going):
            break
        byte = padded[np.minimum(after[going], last)].astype(np.int64)
        value[going] |= (byte & 0x7F) << shift
        after[going] += 1
        going = going[byte >= 0x80]
    after[going] = last + _PAD
    return value, after
