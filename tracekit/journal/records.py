"""Which slots of a segment count, and which continuations belong to which record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.journal.format import segment_epoch
from tracekit.journal.slots import Run
from tracekit.model.record import COMMIT, LANE_SHIFT, RECORD_BYTES, RecordType

__all__ = ["Bools", "Ints", "Records", "committed", "grouped", "read_records"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_TYPE_MASK = RECORD_BYTES - 1
_ID_SHIFT = 24
_ORPHAN = -1


@dataclass(frozen=True, slots=True)
class Records:
    """Committed records of a segment in the order of their slots.

    ``owners`` is for a continuation the place of the record it belongs to, or -1; ``taken`` are
    the slots that these records were in.
    """

    rows: Ints
    types: Ints
    lanes: Ints
    owners: Ints
    taken: list[Run]
    torn: int

    def __len__(self) -> int:
        return len(self.types)


def grouped(records: Iterable[Records], least: int) -> Iterator[Records]:
    """The same records in fewer, larger portions: small ones are put together."""
    waiting: list[Records] = []
    for portion in records:
        waiting.append(portion)
        if sum(map(len, waiting)) >= least:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(portions: Sequence[Records]) -> Records:
    if len(portions) == 1:
        return portions[0]
    owners, first = [], 0
    for portion in portions:
        owners.append(np.where(portion.owners < 0, _ORPHAN, portion.owners + first))
        first += len(portion)
    return Records(
        np.concatenate([portion.rows for portion in portions]),
        np.concatenate([portion.types for portion in portions]),
        np.concatenate([portion.lanes for portion in portions]),
        np.concatenate(owners),
        [run for portion in portions for run in portion.taken],
        sum(portion.torn for portion in portions),
    )


def committed(words: Ints, number: int, chunk_slots: int) -> Bools:
    """Which slots hold their own commit word, in chunks that say whose they are."""
    commits = words[:, COMMIT].copy()
    first = segment_epoch(number) << 32
    expected = np.arange(first, first + len(words) * RECORD_BYTES, RECORD_BYTES)
    good: Bools = (commits - expected).view(np.uint64) < RECORD_BYTES
    good[:chunk_slots] = False
    headed = good[::chunk_slots] & (commits[::chunk_slots] & _TYPE_MASK == RecordType.CHUNK)
    good.reshape(-1, chunk_slots)[~headed] = False
    return good


def read_records(
    words: Ints,
    number: int,
    chunk_slots: int,
    *,
    base: int,
    finished: bool,
    covered: Sequence[Run] = (),
) -> Records:
    """Copy the records of a segment that count and lie in none of the ``covered`` slots.

    ``words`` is the segment as rows of eight words, a whole number of chunks; ``base`` is the
    slot that its first row has among all segments. While a writer may
    still be in it (not ``finished``), a chunk ends at its first uncommitted slot and before
    continuations whose owner is still to come.
    """
    good = committed(words, number, chunk_slots)
    by_chunk = good.reshape(-1, chunk_slots)
    torn = 0
    full: Bools = np.ones(len(by_chunk), bool)
    if finished:
        missing = np.flatnonzero(~good[chunk_slots:]) + chunk_slots
        torn = int(np.count_nonzero(words[missing, :COMMIT].any(axis=1)))
    else:
        full = np.asarray(by_chunk.all(axis=1))
        end = np.where(full, chunk_slots, by_chunk.argmin(axis=1))
        by_chunk &= np.arange(chunk_slots) < end[:, None]
    for start, stop in covered:
        good[max(0, start - base) : max(0, stop - base)] = False
    places = np.flatnonzero(good)
    rows = words.take(places, axis=0)
    if not finished:  # the word was right before the copy; it must still be
        still = committed(words, number, chunk_slots)[places]
        if not still.all():
            places, rows = places[still], rows[still]
    types = rows[:, COMMIT] & _TYPE_MASK
    chunks = places // chunk_slots
    owners = _owners(rows, types, chunks)
    if not finished:
        keep = _without_pending(owners, chunks, full)
        if not keep.all():
            places, rows, types, chunks = places[keep], rows[keep], types[keep], chunks[keep]
            owners = _owners(rows, types, chunks)
    lanes = words[::chunk_slots, 2][chunks] >> LANE_SHIFT
    return Records(rows, types, lanes, owners, _runs(places, base, chunk_slots), torn)


def _is_continuation(types: Ints) -> Bools:
    return (types >= RecordType.VALUES) & (types <= RecordType.TEXT)


def _owners(rows: Ints, types: Ints, chunks: Ints) -> Ints:
    """For each row its own place, for continuations that of their owner, -1 for orphans."""
    count = len(rows)
    owners = np.arange(count)
    continuation = _is_continuation(types)
    places = np.flatnonzero(continuation)
    if not len(places):
        return owners
    following = np.where(continuation, count - 1, owners)
    following = np.minimum.accumulate(following[::-1])[::-1][places]
    wanted = rows[places, 0] >> _ID_SHIFT
    found = _ids(rows, types, following) == wanted
    found &= (chunks[following] == chunks[places]) & ~continuation[following]
    owners[places] = np.where(found, following, _ORPHAN)
    # A garbage collection or a signal may have recorded something in between.
    for row, id_ in zip(places[~found].tolist(), wanted[~found].tolist(), strict=True):
        later = np.arange(row + 1, np.searchsorted(chunks, chunks[row], "right"))
        later = later[~continuation[later] & (types[later] != RecordType.CHUNK)]
        later = later[_ids(rows, types, later) == id_]
        if len(later):
            owners[row] = later[0]
    return owners


def _ids(rows: Ints, types: Ints, places: Ints) -> Ints:
    """The ids of spans and events."""
    ids: Ints = rows[places, 4]
    return np.where(types[places] == RecordType.COLLECTIVE, ids >> _ID_SHIFT, ids).astype(np.int64)


def _without_pending(owners: Ints, chunks: Ints, full: Bools) -> Bools:
    """Leave out, in chunks still being filled, all from the first continuation without owner on."""
    keep = np.ones(len(owners), bool)
    pending = np.flatnonzero((owners == _ORPHAN) & ~full[chunks])
    for chunk in np.unique(chunks[pending]).tolist():
        first = int(np.searchsorted(chunks, chunk))
        last = int(np.searchsorted(chunks, chunk, "right"))
        cut = int(pending[np.searchsorted(pending, first)])
        while True:
            early = np.flatnonzero(owners[first:cut] >= cut)
            if not len(early):
                break
            cut = first + int(early[0])
        keep[cut:last] = False
    return keep


def _runs(places: Ints, base: int, chunk_slots: int) -> list[Run]:
    """The slots as runs; the segment's header counts as taken with its first record."""
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) != 1)
    firsts = places[np.r_[0, breaks + 1]] + base
    ends = places[np.r_[breaks, len(places) - 1]] + base + 1
    runs = list(zip(firsts.tolist(), ends.tolist(), strict=True))
    if runs[0][0] == base + chunk_slots:
        runs[0] = (base, runs[0][1])
    return runs
