"""Journals made byte by byte after docs/journal-format.md, without the writer."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHUNK = 1024
"""Small chunks: a header and fifteen records."""
SLOTS = CHUNK // 64
HEADER = CHUNK
"""A segment's header takes the place of one chunk."""
STEM = "rank-00000.00c0ffee-1"
START = 1_000_000_000
"""Monotonic time at which everything begins; the first anchor makes it UNIX."""
UNIX = 1_790_000_000_000_000_000

IDENTITY, NAME, LANE, COLLECTIVE, SCHEMA, STRING, GROUP, FACT = range(1, 9)
SPAN, EVENT, CHUNK_HEAD, VALUES, JSON, TEXT, COLLECTIVE_SPAN = range(7)

Words = Sequence[int]


def what(name: int, kind: int = 0, lane: int = 0, flags: int = 0) -> int:
    return kind | name << 8 | flags | lane << 32


def span(id_: int, start: int = START, duration: int = 10, **more: int) -> tuple[int, Words]:
    return SPAN, (
        start,
        duration,
        what(more.get("name", 1), more.get("kind", 0), more.get("lane", 0), more.get("flags", 0)),
        more.get("step", 0),
        id_,
        more.get("parent", 0),
        0,
    )


def values(owner: int, schema: int, *words: int) -> tuple[int, Words]:
    return VALUES, (owner << 24 | schema, *words, *[0] * (6 - len(words)))


def piece(type_: int, owner: int, data: bytes) -> tuple[int, Words]:
    return type_, (owner << 24 | len(data), *struct.unpack("<6q", data.ljust(48, b"\0")))


class Journal:
    """A head and segments in memory, to be damaged at will and written."""

    def __init__(self, identity: Mapping[str, Any] | None = None, chunks: int = 4) -> None:
        self.segment_bytes = HEADER + chunks * CHUNK
        self.definition_bytes = 16384
        self.places = {"open": (4096, 1024), "group": (70000, 16), "anchor": (71000, 8)}
        self.definition_offset = 72000
        self.live = {7: 1}
        self.definitions = b""
        self.groups: dict[int, tuple[int, int]] = {}
        self.open_rows: dict[int, Words] = {}
        self.anchors = [(START, UNIX)]
        self.version = 1
        self.magic = b"TKJHEAD\0"
        self.segments: dict[int, bytearray] = {}
        # A pid that belongs to nobody: the writer is dead unless a test says otherwise.
        self.pid = 2**22 - 7
        self.define(IDENTITY, 0, {"rank": 0, **(identity or {})})
        self.define(NAME, 1, "work")
        self.define(LANE, 1, "thread:main")

    def alive(self) -> Journal:
        """The writer is this very process."""
        self.pid = os.getpid()
        return self

    def define(self, type_: int, id_: int, value: Any) -> None:
        payload = json.dumps(value).encode()
        entry = struct.pack("<HxxII", type_, id_, len(payload)) + payload
        self.definitions += entry.ljust(len(entry) + 7 & ~7, b"\0")

    def chunk(
        self, records: Sequence[tuple[int, Words] | None], number: int = 0, lane: int = 1
    ) -> None:
        """Add a chunk; None leaves a slot uncommitted."""
        segment = self.segment(number)
        used = 0
        while segment[HEADER + used * CHUNK :][:CHUNK].strip(b"\0"):
            used += 1
        first = HEADER + used * CHUNK
        self.write(number, first, (CHUNK_HEAD, (77, 0, what(0, 0, lane), 0, 0, 0, 0)))
        for place, record in enumerate(records, 1):
            if record is not None:
                self.write(number, first + place * 64, record)

    def write(self, number: int, offset: int, record: tuple[int, Words]) -> None:
        type_, words = record
        commit = (number + 1) << 32 | offset | type_
        packed = struct.pack("<8q", *words[:7], commit)
        self.segment(number)[offset : offset + 64] = packed

    def segment(self, number: int = 0) -> bytearray:
        if number not in self.segments:
            segment = bytearray(self.segment_bytes)
            magic = b"TKJSEGM\0"
            header = (magic, 1, number, self.segment_bytes, CHUNK, number + 1)
            struct.pack_into("<8sIIQQQ", segment, 0, *header)
            self.segments[number] = segment
            self.live[4] = max(self.live.get(4, 0), number + 1)
        return self.segments[number]

    def head(self) -> bytearray:
        head = bytearray(self.definition_offset + self.definition_bytes)
        layout = (*self.places["open"], *self.places["group"], *self.places["anchor"])
        struct.pack_into(
            "<8sIIQQQQQQQQQQ",
            head,
            0,
            self.magic,
            self.version,
            self.pid,
            self.segment_bytes,
            CHUNK,
            *layout,
            self.definition_offset,
            self.definition_bytes,
        )
        self.live[8] = len(self.definitions)
        for word, value in self.live.items():
            struct.pack_into("<q", head, 256 + word * 8, value)
        for number, row in self.open_rows.items():
            struct.pack_into("<8q", head, 4096 + number * 64, *row)
        for number, (enqueued, completed) in self.groups.items():
            struct.pack_into("<2q", head, 70000 + number * 32, enqueued, completed)
        for number, anchor in enumerate(self.anchors):
            struct.pack_into("<2q", head, 71000 + number * 16, *anchor)
        end = self.definition_offset + len(self.definitions)
        head[self.definition_offset : end] = self.definitions
        return head

    def save(self, folder: Path, stem: str = STEM) -> Path:
        """Write the files; returns the head's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, segment in self.segments.items():
            (folder / f"{stem}.{number:06d}.tkj").write_bytes(segment)
        head = folder / f"{stem}.head.tkj"
        head.write_bytes(self.head())
        return head
