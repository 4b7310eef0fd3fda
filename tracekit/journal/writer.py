"""Writes the journal of one rank: reserved files, mapped, that survive the death of the process.

A file is reserved on the disk and filled with zeros before it is mapped: a store into a hole on a
full disk is a SIGBUS, and the first touch of an unwritten page costs microseconds to milliseconds.
Where a file cannot be had, records go to memory, are lost with it, and are counted.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Any

from tracekit.journal.format import (
    ANCHOR_ROWS,
    DEFINITION,
    GROUP_ROWS,
    HEAD_MAGIC,
    HEADER,
    LIVE_OFFSET,
    OPEN_ROWS,
    SEGMENT_BYTES,
    SEGMENT_HEADER,
    SEGMENT_MAGIC,
    VERSION,
    Definition,
    Live,
    chunk_size,
    head_layout,
    segment_epoch,
)
from tracekit.model.clocks import offset_now
from tracekit.model.record import COMMIT, LANE_SHIFT, RECORD_BYTES, RecordType

__all__ = ["BEAT_S", "JournalWriter", "reserve"]

BEAT_S = 1.0
_ANCHOR_EVERY_NS = 5_000_000_000
_RETRY_NS = 10_000_000_000
_LEFT_AFTER_NS = 1_000_000_000
_MOST_MEMORY_CHUNKS = 64
_ZEROS = bytes(256 << 10)
_MOST_PARTS = 512
_CHUNK = int(RecordType.CHUNK)
_COUNTERS = {
    "dropped": Live.DROPPED,
    "open_overflow": Live.OPEN_OVERFLOW,
    "other": Live.OTHER,
}


def reserve(path: Path, size: int) -> mmap.mmap:
    """Make a new file of ``size`` bytes that exist on the disk, and map it.

    Raises ``OSError`` when it exists, when the disk is full or over quota, or when the file
    system cannot reserve; nothing is left behind then.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, size)
        _write_zeros(fd, size)
        mapped = mmap.mmap(fd, size)
        _touch(fd, mapped)
    except (OSError, ValueError) as error:
        os.unlink(path)
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
    finally:
        os.close(fd)
    return mapped


def _write_zeros(fd: int, size: int) -> None:
    """Fill a file in as few calls as can be: each makes the job hand over the interpreter."""
    done = 0
    while done < size:
        whole = min((size - done) // len(_ZEROS), _MOST_PARTS)
        parts = [_ZEROS] * whole or [_ZEROS[: size - done]]
        done += os.pwritev(fd, parts, done)


def _touch(fd: int, mapped: mmap.mmap) -> None:
    """Make each page writable ahead of the job by reading the file's zeros onto themselves.

    The kernel does it while the interpreter is free; ``mmap.madvise`` would hold it up.
    """
    done = 0
    with memoryview(mapped) as view:
        while done < len(view):
            moved = os.preadv(fd, [view[done:]], done)
            if not moved:
                raise OSError("the file is shorter than it was made")
            done += moved


class JournalWriter:
    """The sink of a recorder: a head file, segments, and a thread that keeps one segment ahead.

    ``retire(epoch)`` is called when threads should leave segments before that epoch; ``say``
    tells the user about a loss. Neither the constructor nor any method raises for want of space.
    """

    open_rows = OPEN_ROWS
    group_rows = GROUP_ROWS

    def __init__(
        self,
        folder: Path,
        stem: str,
        identity: Mapping[str, Any],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        quota_bytes: int = 1 << 30,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._chunk_bytes = chunk_size(segment_bytes)
        self._segment_bytes = max(segment_bytes, 2 * self._chunk_bytes)
        self._quota = quota_bytes
        self._say = say
        self.retire: Callable[[int], None] = lambda epoch: None
        self.answer: Callable[[int], None] = lambda question: None
        """Called by the journal's own thread when the agent has asked something."""
        self._answered = 0
        self._lock = threading.RLock()
        """Held for moments only. Who holds ``_making`` may take it, never the other way round."""
        self._making = threading.RLock()
        """Held while a segment is made; only who needs a new one waits for it."""
        self._untold: deque[str] = deque()
        self._head_layout = layout = head_layout()
        self._closed = False
        self.in_memory = False
        self._memory_chunks: deque[memoryview] = deque()
        self._retry_at = 0
        head = self._make_head()
        self._head = head
        self._live = memoryview(head)[LIVE_OFFSET : LIVE_OFFSET + 128].cast("q")
        end = layout.open_offset + (OPEN_ROWS + 1) * RECORD_BYTES
        self.open_buffer = memoryview(head)[layout.open_offset : end]
        self.open_words = self.open_buffer.cast("q")
        end = layout.group_offset + GROUP_ROWS * 32
        self.group_words = memoryview(head)[layout.group_offset : end].cast("q")
        end = layout.anchor_offset + ANCHOR_ROWS * 16
        self._anchors = memoryview(head)[layout.anchor_offset : end].cast("q")
        self._anchored_at = 0
        self._segments: dict[int, Path] = {}
        self._next_number = 0
        self._segment: memoryview | None = None
        """The words of the segment in use."""
        self._segment_number = -1
        self._commit = 0
        self._next_chunk = self._end_of_chunks = 0
        self._spare: tuple[int, mmap.mmap] | None = None
        self._leaving: deque[tuple[int, int]] = deque()
        """Segments that threads were told to leave, all below a number, and when they have."""
        self._defined = self._defining = 0
        self.beat()
        self.identify(identity)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-journal", daemon=True)
        self._thread.start()

    # What the recorder calls

    def chunk(self, lane: int, thread_id: int) -> tuple[memoryview, int, int]:
        """A fresh chunk whose first record names the thread and its lane: its words, at which byte
        the next record lies, and what is added to a record's place to make its commit word.

        A record waits for it, with cold caches: nearly always it is this one function.
        """
        size = self._chunk_bytes
        while True:
            with self._lock:
                segment, start = self._segment, self._next_chunk
                commit = self._commit + start
                if segment is not None and start < self._end_of_chunks:
                    self._next_chunk = start + size
                    break
            if not self._make_room():
                segment, start, commit = self._memory_chunk(), 0, 0
                break
        words = segment[start // 8 : (start + size) // 8]
        words[0] = thread_id
        words[2] = lane << LANE_SHIFT
        words[COMMIT] = commit | _CHUNK
        return words, RECORD_BYTES, commit

    def _make_room(self) -> bool:
        """Move to a segment that has chunks, unless another thread just did; False: none is."""
        with self._making:
            return self._next_chunk < self._end_of_chunks or self._rotate()

    def define(self, type_: int, id_: int, payload: bytes) -> bool:
        """Append a definition; False, counted, when the head has no room for it."""
        size = DEFINITION.size + len(payload) + 7 & ~7
        with self._lock:
            # A garbage collection in here may define something too: it gets a place of its own,
            # and what counts moves on when both are there.
            start = self._defined
            if start + size > self._head_layout.definition_bytes:
                self._live[Live.OTHER] += 1
                return False
            self._defined = start + size
            self._defining += 1
            start += self._head_layout.definition_offset
            DEFINITION.pack_into(self._head, start, type_, id_, len(payload))
            start += DEFINITION.size
            self._head[start : start + len(payload)] = payload
            self._defining -= 1
            if not self._defining:
                self._live[Live.DEFINED] = self._defined
        return True

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter of the head."""
        with self._lock:
            self._live[_COUNTERS[counter]] += amount

    def close(self) -> None:
        """Mark a clean stop; the files stay for the reader."""
        self._closed = True
        self._wake.set()
        with self._making, self._lock:
            self._count_memory(everything=True)
            self._discard_spare()
            self._live[Live.STOPPED] = monotonic_ns()
        self._tell()

    # What the session calls

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Say who writes; said again when rank or run become known later, the last one counts."""
        self.define(Definition.IDENTITY, 0, json.dumps(identity, default=str).encode())

    def moved(self, folder: Path, stem: str) -> None:
        """The session renamed the files of this journal."""
        with self._lock:
            self._segments = {
                number: folder / f"{stem}.{number:06d}.tkj" for number in self._segments
            }
            self._folder, self._stem = folder, stem

    def files(self) -> list[Path]:
        """The files of this journal as they are named now."""
        with self._lock:
            head = [] if self.headless else [self._folder / f"{self._stem}.head.tkj"]
            return [*head, *self._segments.copy().values()]

    @property
    def lock(self) -> threading.RLock:
        """Held while the session renames the files: none is made meanwhile."""
        return self._making

    # Making files

    def _make_head(self) -> mmap.mmap:
        layout = self._head_layout
        self.headless = False
        try:
            head = reserve(self._folder / f"{self._stem}.head.tkj", layout.size)
        except OSError as error:
            self.headless = self.in_memory = True
            self._retry_at = 1 << 62
            self._say(f"nothing is kept of this rank: {self._folder}: {error.strerror or error}")
            head = mmap.mmap(-1, layout.size)
        HEADER.pack_into(
            head,
            0,
            HEAD_MAGIC,
            VERSION,
            os.getpid(),
            self._segment_bytes,
            self._chunk_bytes,
            layout.open_offset,
            OPEN_ROWS,
            layout.group_offset,
            GROUP_ROWS,
            layout.anchor_offset,
            ANCHOR_ROWS,
            layout.definition_offset,
            layout.definition_bytes,
        )
        return head

    def _make_segment(self, number: int) -> mmap.mmap:
        path = self._folder / f"{self._stem}.{number:06d}.tkj"
        mapped = reserve(path, self._segment_bytes)
        SEGMENT_HEADER.pack_into(
            mapped,
            0,
            SEGMENT_MAGIC,
            VERSION,
            number,
            self._segment_bytes,
            self._chunk_bytes,
            segment_epoch(number),
        )
        self._segments[number] = path
        return mapped

    def _rotate(self) -> bool:
        """Move to the spare segment; make one here only when the thread has not kept up."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None and monotonic_ns() >= self._retry_at:
            spare = self._try_segment()
        if spare is None:
            with self._lock:
                self._segment = None
                self._next_chunk = self._end_of_chunks = 0
            return False
        number, mapped = spare
        words = memoryview(mapped)[: self._segment_bytes // 8 * 8].cast("q")
        with self._lock:
            self._segment = words
            self._segment_number = number
            self._commit = segment_epoch(number) << 32
            self._end_of_chunks = self._segment_bytes // self._chunk_bytes * self._chunk_bytes
            self._next_chunk = self._chunk_bytes  # the header has the place of the first
            self.in_memory = False
            self._live[Live.MEMORY] = 0
            self._live[Live.SEGMENTS] = number + 1
        self.retire(segment_epoch(number) - 1)
        self._leaving.append((number - 1, monotonic_ns() + _LEFT_AFTER_NS))
        self._wake.set()
        return True

    def _try_segment(self) -> tuple[int, mmap.mmap] | None:
        """Make the next segment, who holds ``_making``; None when there is no room for it."""
        number = self._next_number
        try:
            self._enforce_quota()
            mapped = self._make_segment(number)
        except OSError as error:
            self.in_memory = True
            self._live[Live.MEMORY] = 1
            self._retry_at = monotonic_ns() + _RETRY_NS
            self._untold.append(
                f"records are being lost: {self._folder}: {error.strerror or error};"
                " training goes on"
            )
            self._wake.set()
            return None
        self._next_number = number + 1
        return number, mapped

    def _enforce_quota(self) -> None:
        """Drop the oldest segments that nobody writes into until one more fits."""
        most = max(3, self._quota // self._segment_bytes)
        for number in sorted(self._segments):
            if len(self._segments) < most or number >= self._segment_number - 1:
                return
            path = self._segments.pop(number)
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # the agent has shipped it
            except OSError:
                continue
            chunks = self._segment_bytes // self._chunk_bytes - 1
            self._live[Live.EVICTED] += 1
            self._live[Live.DROPPED] += chunks * (self._chunk_bytes // RECORD_BYTES - 1)
            self._untold.append(
                "the journal's quota is used up: the oldest spans are being dropped"
            )

    def _discard_spare(self) -> None:
        if self._spare is not None:
            number, _ = self._spare
            self._spare = None
            path = self._segments.pop(number)
            path.unlink(missing_ok=True)

    # Memory, when there is no disk

    def _memory_chunk(self) -> memoryview:
        words = memoryview(bytearray(self._chunk_bytes)).cast("q")
        with self._lock:
            self._count_memory()
            self._memory_chunks.append(words)
        return words

    def _count_memory(self, everything: bool = False) -> None:
        """Count records in memory as dropped once their chunk is full or at the end."""
        kept: deque[memoryview] = deque()
        surplus = len(self._memory_chunks) - _MOST_MEMORY_CHUNKS
        for place, words in enumerate(self._memory_chunks):
            last = words[len(words) - 1]
            if everything or last or place < surplus:
                records = sum(1 for word in words[COMMIT :: RECORD_BYTES // 8].tolist()[1:] if word)
                self._live[Live.DROPPED] += records
            else:
                kept.append(words)
        self._memory_chunks = kept

    # The thread

    def beat(self) -> None:
        """Say that the interpreter's lock can be had, and anchor the clock now and then."""
        now = monotonic_ns()
        self._live[Live.HEARTBEAT] = now
        if now - self._anchored_at >= _ANCHOR_EVERY_NS:
            self._anchored_at = now
            written = self._live[Live.ANCHORS]
            row = written if written < ANCHOR_ROWS else 1 + (written - 1) % (ANCHOR_ROWS - 1)
            self._anchors[row * 2] = now
            self._anchors[row * 2 + 1] = now + offset_now()
            self._live[Live.ANCHORS] = written + 1

    def _run(self) -> None:
        while not self._closed:
            try:
                self._prepare()
                self.beat()
                if self._live[Live.ASKED] != self._answered:
                    self._answered = self._live[Live.ASKED]
                    self.answer(self._answered)
            except Exception as error:
                self._untold.append(f"the journal's thread: {error}")
            self._tell()
            self._wake.wait(BEAT_S)
            self._wake.clear()

    def _tell(self) -> None:
        """Tell the user what there is to tell; holding no lock, for his logging may record."""
        while self._untold:
            self._say(self._untold.popleft())

    def _prepare(self) -> None:
        """Keep one segment ahead, and publish which segments have no writer left."""
        while self._leaving and self._leaving[0][1] <= monotonic_ns():
            number, _ = self._leaving.popleft()
            self._live[Live.RETIRED] = max(number, self._live[Live.RETIRED])
        if self._spare is None and not self._closed and monotonic_ns() >= self._retry_at:
            with self._making:
                if self._spare is None and not self._closed:
                    self._spare = self._try_segment()
