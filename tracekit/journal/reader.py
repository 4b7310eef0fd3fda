"""Reads the journal of one rank: live, stopped, or left behind by a process that died.

Not imported by the package: it needs numpy, and what records must not.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.errors import FormatError, InputError, VersionError
from tracekit.journal.definitions import Definitions
from tracekit.journal.format import (
    HEAD_MAGIC,
    HEADER,
    LIVE_OFFSET,
    SEGMENT_HEADER,
    SEGMENT_MAGIC,
    VERSION,
    Live,
    segment_epoch,
)
from tracekit.journal.process import is_alive
from tracekit.journal.records import Ints, Records, committed, read_records
from tracekit.journal.slots import Run, clip, count
from tracekit.model.record import COMMIT, RECORD_BYTES, RECORD_WORDS, Flag, RecordType

__all__ = [
    "HEAD_SUFFIX",
    "Anchor",
    "JournalReader",
    "Segment",
    "find_journals",
    "open_journal",
]

HEAD_SUFFIX = ".head.tkj"
_STEM = re.compile(r"rank-(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Anchor:
    """One instant on the monotonic clock and on the wall's."""

    monotonic_ns: int
    unix_ns: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file, mapped: what is in it stays readable when the file is unlinked."""

    number: int
    path: Path
    words: Ints


def find_journals(folder: Path) -> list[Path]:
    """The heads in a folder, in the order of their names."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(HEAD_SUFFIX))
    except FileNotFoundError:
        return []


def open_journal(head: Path) -> JournalReader:
    """Open a journal by its head.

    Raises ``FormatError`` when the head is cut or garbage, ``VersionError`` when a newer tracekit
    wrote it, ``InputError`` when it cannot be read, ``FileNotFoundError`` when it is gone.
    """
    return JournalReader(head)


class JournalReader:
    """A head, mapped, and its segments. ``refresh`` takes in what was added since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stem = path.name.removesuffix(HEAD_SUFFIX)
        self.folder = path.parent
        self._head = memoryview(_map(path))
        self._read_header()
        self.definitions = Definitions()
        self.segments: dict[int, Segment] = {}
        self.skipped: list[tuple[Path, str]] = []
        """Segments that cannot be read, and why."""
        self.ahead: list[Path] = []
        """Segments made ahead, wholly or half, that hold nothing yet."""
        self._alive = True
        self.refresh()

    def _read_header(self) -> None:
        if len(self._head) < LIVE_OFFSET + 128:
            raise FormatError(self.path, f"the head is cut: {len(self._head)} bytes")
        header = HEADER.unpack_from(self._head)
        magic, version, self.pid = header[:3]
        if magic != HEAD_MAGIC:
            raise FormatError(self.path, "not the head of a journal")
        if version > VERSION:
            raise VersionError(self.path, _newer(version))
        self.segment_bytes, self.chunk_bytes = header[3:5]
        open_, group, anchor, definition = zip(header[5::2], header[6::2], strict=True)
        self._definition_offset, definition_bytes = definition
        size = self._definition_offset + definition_bytes
        if len(self._head) < size:
            raise FormatError(self.path, f"the head is cut: {len(self._head)} of {size} bytes")
        self._live = np.frombuffer(self._head, "<i8", 16, LIVE_OFFSET)
        self._open = self._table(*open_, RECORD_WORDS)
        self._groups = self._table(*group, 4)
        self._anchors = self._table(*anchor, 2)
        self.slots: int = self.segment_bytes // RECORD_BYTES
        """Slots of one segment, the header's included."""
        if self.chunk_bytes % RECORD_BYTES or not self.chunk_bytes:
            raise FormatError(self.path, f"chunks of {self.chunk_bytes} bytes")
        if not 0 <= self.live(Live.DEFINED) <= definition_bytes:
            raise FormatError(self.path, "damaged, or from a machine of the other byte order")

    def _table(self, offset: int, rows: int, words: int) -> Ints:
        try:
            return np.frombuffer(self._head, "<i8", rows * words, offset).reshape(rows, words)
        except ValueError as error:
            raise FormatError(self.path, f"a table lies outside the head: {error}") from error

    def refresh(self) -> None:
        """Take in new definitions, look whether the writer lives, and map new segments."""
        self.read_definitions()
        self._alive = self._alive and is_alive(
            self.identity, self.pid, self.live(Live.HEARTBEAT), self.offset_ns
        )
        self._map_segments()

    def read_definitions(self) -> None:
        """Take in definitions; to be called after records were copied that may use new ones."""
        end = self._definition_offset + self.live(Live.DEFINED)
        self.definitions.read(self._head[self._definition_offset : end])

    def _map_segments(self) -> None:
        self.ahead = []
        prefix, suffix = f"{self.stem}.", ".tkj"
        for entry in sorted(os.listdir(self.folder)):
            number = entry[len(prefix) : -len(suffix)]
            if not (entry.startswith(prefix) and entry.endswith(suffix) and number.isdigit()):
                continue
            if int(number) in self.segments:
                continue
            path = self.folder / entry
            try:
                words = self._segment(path, int(number))
            except FileNotFoundError:
                continue  # covered by parts and unlinked meanwhile
            except InputError as error:
                if int(number) >= self.live(Live.SEGMENTS):
                    self.ahead.append(path)  # its writer may have been killed at it
                elif (path, error.reason) not in self.skipped:
                    self.skipped.append((path, error.reason))
                continue
            if words is None:
                self.ahead.append(path)
            else:
                self.segments[int(number)] = Segment(int(number), path, words)

    def _segment(self, path: Path, number: int) -> Ints | None:
        """The words of a segment; None for one that is made ahead and not in use yet."""
        mapped = _map(path)
        size = len(mapped)
        header = SEGMENT_HEADER.unpack_from(mapped) if size >= SEGMENT_HEADER.size else None
        if header is None or header[0] != SEGMENT_MAGIC:
            if number >= self.live(Live.SEGMENTS):
                return None
            raise FormatError(path, "not a segment of a journal" if header else "the file is cut")
        _, version, inside, segment_bytes, chunk_bytes, epoch = header
        if version > VERSION:
            raise VersionError(path, _newer(version))
        if (inside, segment_bytes, chunk_bytes, epoch) != (
            number,
            self.segment_bytes,
            self.chunk_bytes,
            segment_epoch(number),
        ):
            raise FormatError(path, "the segment belongs to another journal")
        usable = segment_bytes // chunk_bytes * chunk_bytes
        data: memoryview | bytes = memoryview(mapped)[:usable]
        if size < usable:
            self.skipped.append((path, f"the file is cut: {size} of {segment_bytes} bytes"))
            data = bytes(data).ljust(-size % chunk_bytes + size, b"\0")
        return np.frombuffer(data, "<i8").reshape(-1, RECORD_WORDS)

    # Who and how far

    @property
    def identity(self) -> dict[str, Any]:
        """What the session last said about this rank."""
        return self.definitions.identity

    @property
    def rank(self) -> int:
        """The rank; from the file's name while the identity does not say."""
        named = _STEM.fullmatch(self.stem)
        rank = self.identity.get("rank")
        if rank is None:
            rank = named[1] if named else 0
        return int(rank)

    @property
    def attempt(self) -> int:
        """The attempt of the run."""
        return int(self.identity.get("attempt", 0))

    @property
    def provisional(self) -> bool:
        """Whether rank or run are not known for good yet: nothing may be converted then."""
        return bool(self.identity.get("provisional"))

    @property
    def process(self) -> str:
        """The second half of the stem: host and pid."""
        named = _STEM.fullmatch(self.stem)
        return named[2] if named else self.stem

    def live(self, word: Live) -> int:
        """A word of the head as it is now."""
        return int(self._live[word])

    @property
    def stopped(self) -> bool:
        """Whether the rank called stop()."""
        return self.live(Live.STOPPED) != 0

    def alive(self) -> bool:
        """Whether the writing process lived at the last ``refresh``."""
        return self._alive

    def writing(self) -> bool:
        """Whether records may still come."""
        return self._alive and not self.stopped

    # Times

    def anchors(self) -> list[Anchor]:
        """The pairs of clock readings, the first one first."""
        written = self.live(Live.ANCHORS)
        rows = self._anchors[:written].tolist()
        if written >= len(self._anchors):  # a ring behind the first; one row may be half written
            del rows[1 + (written - 1) % (len(self._anchors) - 1)]
        return [Anchor(monotonic, unix) for monotonic, unix in sorted(rows)]

    @property
    def offset_ns(self) -> int:
        """What turns this journal's monotonic times into Unix times."""
        common = self.identity.get("clock_offset_ns")
        if common is not None:
            return int(common)
        monotonic, unix = self._anchors[0].tolist()
        return int(unix - monotonic)

    # What is in it

    def open_rows(self) -> Ints:
        """Rows of the open-span table that are in use, each with its number as a ninth word."""
        before = self._open[:, 7].copy()
        rows = self._open.copy()
        same = (before != 0) & (rows[:, 7] == before) & (self._open[:, 7] == before)
        numbers = np.flatnonzero(same)
        return np.column_stack([rows[numbers], numbers])

    def groups(self) -> dict[str, tuple[int, int]]:
        """Per process group the last sequence number enqueued and completed."""
        names = self.definitions.groups
        rows = self._groups[:, :2].tolist()
        return {
            names[place]: (enqueued, completed)
            for place, (enqueued, completed) in enumerate(rows)
            if place in names and (enqueued or completed)
        }

    def last_end(self) -> int:
        """The latest end of a host's span in the newest segments; monotonic, 0 without any."""
        last = 0
        for number in sorted(self.segments)[-3:]:
            words = self.segments[number].words
            types = words[:, COMMIT] & (RECORD_BYTES - 1)
            spans = committed(words, number, self.chunk_slots)
            spans &= (types == RecordType.SPAN) | (types == RecordType.COLLECTIVE)
            spans &= (words[:, 2] & int(Flag.DEVICE)) == 0
            rows = words[spans]
            last = max(last, int((rows[:, 0] + rows[:, 1]).max(initial=0)))
        return last

    def finished(self, segment: Segment) -> bool:
        """Whether nobody writes into a segment any more."""
        return not self.writing() or segment.number < self.live(Live.RETIRED)

    def records(self, covered: Sequence[Run] = ()) -> Iterator[Records]:
        """The records that count and are not covered, segment by segment."""
        for number in sorted(self.segments):
            segment = self.segments[number]
            finished = self.finished(segment)
            base = number * self.slots
            held = clip(covered, base, base + len(segment.words))
            rest = clip(covered, base + self.chunk_slots, base + len(segment.words))
            if count(rest) == len(segment.words) - self.chunk_slots:
                continue
            yield read_records(
                segment.words,
                number,
                self.chunk_slots,
                base=base,
                finished=finished,
                covered=held,
            )

    def is_covered(self, segment: Segment, covered: Sequence[Run]) -> bool:
        """Whether no committed record of a segment is missing in ``covered``."""
        good = committed(segment.words, segment.number, self.chunk_slots)
        base = segment.number * self.slots
        for first, end in clip(covered, base, base + len(good)):
            good[first - base : end - base] = False
        return not good.any()

    @property
    def chunk_slots(self) -> int:
        """Slots of a chunk."""
        chunk_slots: int = self.chunk_bytes // RECORD_BYTES
        return chunk_slots

    def ask(self, stacks: bool) -> None:
        """Ask the writer for a dump of its framework's last calls, which it puts beside its files.

        Raises ``OSError`` where its head is gone or may not be written.
        """
        question = (self.live(Live.ASKED) // 2 + 1) * 2 + stacks
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, struct.pack("<q", question), LIVE_OFFSET + 8 * Live.ASKED)
        finally:
            os.close(file)

    # One converter at a time

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold this journal for converting; False when another process holds it.

        A lock of the kernel on the head: it ends with its holder, however that dies.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(file)


def _newer(version: int) -> str:
    return f"written in version {version} of the format; this tracekit reads up to {VERSION}"


def _map(path: Path) -> mmap.mmap:
    """Map a file for reading."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    try:
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = "the file is empty" if isinstance(error, ValueError) else str(error.strerror)
        raise FormatError(path, reason) from error
    finally:
        os.close(file)
