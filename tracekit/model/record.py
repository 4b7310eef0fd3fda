"""The record: eight 64-bit words that hold one span or event, shared by who writes and who reads.

    word  span             collective               event                  continuation
    0     start, ns        start                    time, ns               owner's id << 24 | detail
    1     duration, ns     duration                 value, double bits     payload
    2     what             what                     what                   payload
    3     step             step                     step                   payload
    4     id               id << 24 | distance      id                     payload
    5     parent's id      collective << 48 | seq   0                      payload
    6     0                bytes                    0                      payload
    7     commit: epoch << 32 | byte offset in the segment | type of record

Times are monotonic. ``what`` is kind | name << 8 | flags << 22 | lane << 32, ``step`` is
(step + 1) << 16 | micro-step + 1, ``distance`` how many ids the parent came earlier. The common
words stay below 2**30 in the common case: Python packs such integers in half the time.

A record counts once its commit word, written alone and last, is there. Offsets are multiples of
64, so the low six bits of the commit word are free for the type. Continuations carry attributes
and texts; they come before the record that owns them and name it by its id.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

__all__ = [
    "COMMIT",
    "DISTANCE_BITS",
    "LANE_SHIFT",
    "NAME_MASK",
    "NAME_SHIFT",
    "PAYLOAD_BYTES",
    "PAYLOAD_WORDS",
    "RECORD_BYTES",
    "RECORD_WORDS",
    "SEQ_BITS",
    "STEP_BITS",
    "Flag",
    "RecordType",
    "pack_begun",
    "pack_collective",
    "pack_event",
    "pack_raw",
    "pack_span",
    "what_word",
]

RECORD_WORDS = 8
RECORD_BYTES = 64
COMMIT = 7
PAYLOAD_WORDS = 6
PAYLOAD_BYTES = 48
DISTANCE_BITS = 24
STEP_BITS = 16
SEQ_BITS = 48


class RecordType(IntEnum):
    """The low six bits of a commit word."""

    SPAN = 0
    COLLECTIVE = 6
    EVENT = 1
    CHUNK = 2
    """First record of a chunk: word 0 is the native thread id, word 2 holds the lane."""
    VALUES = 3
    """Attributes: detail is the id of a schema, the payload one word a value."""
    JSON = 4
    """Attributes that fit no schema: detail is the number of payload bytes of one JSON object."""
    TEXT = 5
    """The text of an event: detail as JSON's; several make a longer text."""


class Flag(IntEnum):
    """Bits of a ``what`` word between the name and the lane."""

    DEVICE = 1 << 22
    ERROR = 1 << 23
    VALUE = 1 << 24
    """The event has a number."""


NAME_SHIFT = 8
NAME_MASK = 0x3FFF
LANE_SHIFT = 32

# Native byte order: the writer and the reader of a journal share a host's architecture, and the
# reader refuses a head written in the other order.
pack_span = Struct("6q").pack_into
pack_collective = Struct("7q").pack_into
pack_event = Struct("qdqqq").pack_into
pack_raw = Struct("q48s").pack_into
pack_begun = Struct("8q").pack_into
"""Start, what, step, parent, collective and sequence, bytes, lane and id of a row in the open-span
table.

The lane is 0 where ``what`` has it. A row counts while its id, its last word, is not 0: who writes
word by word writes it last, so it never stands over a row that is not complete."""


def what_word(name: int, kind: int, lane: int = 0, flags: int = 0) -> int:
    """Pack the ids of a name, a kind and a lane (0: the lane of the chunk) into word 2."""
    return kind | name << NAME_SHIFT | flags | lane << LANE_SHIFT
