"""The bytes of a journal: the head file and its segments. No other module knows them.

A journal of one rank in one process is a head file and numbered segment files:

    <stem>.head.tkj      who wrote it, how far it is, what is open, what the ids in records mean
    <stem>.000000.tkj    records, in chunks; each chunk has one writing thread

``docs/journal-format.md`` is the page for people. A version once shipped is read for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from tracekit.model.record import RECORD_BYTES

__all__ = [
    "ANCHOR_ROWS",
    "DEFINITION",
    "GROUP_ROWS",
    "HEADER",
    "HEAD_MAGIC",
    "LIVE_OFFSET",
    "OPEN_ROWS",
    "RING_SUFFIX",
    "SEGMENT_BYTES",
    "SEGMENT_HEADER",
    "SEGMENT_MAGIC",
    "VERSION",
    "Definition",
    "Head",
    "Live",
    "chunk_size",
    "head_layout",
    "segment_epoch",
]

VERSION = 1
HEAD_MAGIC = b"TKJHEAD\0"
SEGMENT_MAGIC = b"TKJSEGM\0"

HEADER = Struct("<8sIIQQQQQQQQQQ")
"""magic, version, pid, segment bytes, chunk bytes, and offset and rows (bytes, for the last) of:
open-span table, groups, anchors, definitions."""
SEGMENT_HEADER = Struct("<8sIIQQQ")
"""magic, version, number, segment bytes, chunk bytes, epoch; in the place of the first chunk."""

SEGMENT_BYTES = 4 << 20
_LEAST_CHUNK, _MOST_CHUNK = 16 << 10, 64 << 10
OPEN_ROWS = 1024
GROUP_ROWS = 256
ANCHOR_ROWS = 1024
LIVE_OFFSET = 256
RING_SUFFIX = ".ring"
"""Of files beside a journal with which its rank answers: a dump of the framework's last calls."""
_DEFINITION_BYTES = 1 << 20
_PAGE = 4096


class Live(IntEnum):
    """Words at ``LIVE_OFFSET`` of the head that change while the rank runs."""

    HEARTBEAT = 0
    """Monotonic time of the last beat; the beat needs the interpreter's lock."""
    STOPPED = 1
    """Monotonic time of stop(), 0 before it."""
    DROPPED = 2
    """Records lost on purpose: quota, full disk."""
    EVICTED = 3
    """Segments removed for the quota, the oldest first."""
    SEGMENTS = 4
    """Segments made."""
    OPEN_OVERFLOW = 5
    """Spans that found no free row in the open-span table."""
    OTHER = 6
    """Names, lanes or attribute sets folded to ``~other``."""
    ANCHORS = 7
    """Anchors written."""
    DEFINED = 8
    """Bytes of definitions committed."""
    MEMORY = 9
    """1 while records go to memory only."""
    RETIRED = 10
    """Segments below this number have no writer left."""
    ASKED = 11
    """The agent's last question to the rank: 2 × its number, + 1 for one that asks for stacks."""


class Definition(IntEnum):
    """What a definition defines; the payload is UTF-8 JSON."""

    IDENTITY = 1
    NAME = 2
    LANE = 3
    COLLECTIVE = 4
    SCHEMA = 5
    STRING = 6
    GROUP = 7
    FACT = 8


DEFINITION = Struct("<HxxII")
"""type, id, payload bytes. Definitions are padded to 8 bytes, appended, and count once the live
word ``DEFINED`` has moved past them."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where the parts of a head file lie, in bytes."""

    open_offset: int
    group_offset: int
    anchor_offset: int
    definition_offset: int
    definition_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.definition_offset + self.definition_bytes


def head_layout(definition_bytes: int = _DEFINITION_BYTES) -> Head:
    """The layout that this version writes; a reader takes the offsets from the file."""
    open_offset = _PAGE
    group_offset = open_offset + (OPEN_ROWS + 1) * RECORD_BYTES
    anchor_offset = group_offset + GROUP_ROWS * 32
    definition_offset = anchor_offset + ANCHOR_ROWS * 16
    return Head(open_offset, group_offset, anchor_offset, definition_offset, definition_bytes)


def chunk_size(segment_bytes: int) -> int:
    """Bytes of a chunk where segments have so many: a whole number of records.

    A thread that takes a chunk waits for it, so they are large; each thread that records at all
    has one, so they are not larger, and smaller in small segments.
    """
    return min(max(segment_bytes // 64, _LEAST_CHUNK), _MOST_CHUNK) // RECORD_BYTES * RECORD_BYTES


def segment_epoch(number: int) -> int:
    """The epoch in the commit words of a segment: never 0, so a zero word is never valid."""
    return number + 1 & 0x7FFFFFFF or 1
