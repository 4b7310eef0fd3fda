"""How far a journal got: its open spans, its last instant, what it lost, and how it ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset.decode import Origin, SpanWords, span_table
from tracekit.dataset.parts import Held, temporary
from tracekit.dataset.schema import SPANS
from tracekit.journal.format import Live
from tracekit.journal.process import boot_id, process_state
from tracekit.journal.reader import JournalReader
from tracekit.journal.records import Ints
from tracekit.journal.slots import Run, clip, count
from tracekit.model import kind_code
from tracekit.model.record import LANE_SHIFT

__all__ = ["Ending", "closed_in", "end_state", "look", "lost_records", "write_json"]

_THREAD_ROWS = 384
_BLOCK = 16
_STEP = kind_code("step")
_MOST_AHEAD_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Ending:
    """The open spans of a journal and the last instant known of its rank, monotonic.

    Taken before its records are read: what is in neither of them had not begun then.
    """

    rows: Ints
    last_ns: int

    def open_spans(
        self, journal: JournalReader, origin: Origin, known: Iterable[pa.Table]
    ) -> pa.Table:
        """Rows of ``spans`` for the spans whose ids are in none of the ``known`` tables."""
        ids = self.rows[:, 7]
        closed = np.zeros(len(ids), bool)
        for table in known:
            closed |= np.isin(ids, table["span_id"].to_numpy())
        rows = _complete(self.rows)[~closed]
        words = _words(rows, self.last_ns)
        return span_table(words, journal.definitions, origin, is_open=True)


def look(journal: JournalReader, state: Mapping[str, Any] | None = None) -> Ending:
    """Take the open spans of a journal now; ``state["time_ns"]`` is when its process ended."""
    rows = journal.open_rows()
    beat = journal.live(Live.HEARTBEAT)
    last = max(
        beat,
        journal.live(Live.STOPPED),
        min(journal.last_end(), beat + _MOST_AHEAD_NS),
        int(rows[:, 0].max(initial=0)),
    )
    ended = (state or {}).get("time_ns")
    if ended is not None:
        last = max(last, int(ended) - journal.offset_ns)
    elif journal.writing() and journal.identity.get("boot_id", boot_id()) == boot_id():
        last = max(last, time.monotonic_ns())
    return Ending(rows, last)


def closed_in(files: Iterable[tuple[Path, Held]], ids: Sequence[int]) -> pa.Table:
    """The rows of spans with these ids that files hold of a journal."""
    found = [SPANS.empty_table().select(["span_id"])]
    for path, held in files:
        inside = [id_ for id_ in ids if held.ids[0] <= id_ <= held.ids[1]]
        if inside:
            rows = pq.read_table(
                path,
                columns=["attempt", "rank", "span_id"],
                filters=pc.field("span_id").isin(inside)
                & (pc.field("attempt") == held.attempt)
                & (pc.field("rank") == held.rank),
                partitioning=None,
            )
            found.append(rows.select(["span_id"]))
    return pa.concat_tables(found)


def _complete(rows: Ints) -> Ints:
    """Give the rows of threads the words that their spans did not write: step and parent.

    A span of a thread belongs to the step that was open when it began and lies in the span that
    is open one depth above it.
    """
    rows = rows.copy()
    numbers = rows[:, 8]
    rows[:, 1] |= np.where(rows[:, 1] >> LANE_SHIFT == 0, rows[:, 6] << LANE_SHIFT, 0)
    steps = rows[(numbers >= _THREAD_ROWS) & (rows[:, 1] & 0xFF == _STEP)]
    open_at = {int(row[8]): int(row[7]) for row in rows}
    for row in rows[numbers < _THREAD_ROWS]:
        number, id_ = int(row[8]), int(row[7])
        step = max(steps[steps[:, 7] < id_].tolist(), key=lambda step: step[7], default=None)
        above = [
            open_at[other]
            for other in range(number - number % _BLOCK, number)
            if open_at.get(other, id_) < id_
        ]
        place = np.flatnonzero(numbers == number)
        rows[place, 2] = step[2] if step else 0
        rows[place, 3] = max([*above, step[7] if step else 0])
        rows[place, 4:6] = 0
    return rows


def _words(rows: Ints, last_ns: int) -> SpanWords:
    start, what, step, parent, site, size, _, ids, _ = np.ascontiguousarray(rows.T)
    return SpanWords(
        start,
        np.maximum(last_ns - start, 0),
        what,
        what >> LANE_SHIFT,
        step,
        ids,
        parent,
        site != 0,
        site,
        size,
    )


def lost_records(journal: JournalReader, slots: Sequence[Run]) -> int:
    """How many records are lost for good: never written, or in segments evicted unread."""
    dropped, evicted = journal.live(Live.DROPPED), journal.live(Live.EVICTED)
    if not evicted:
        return dropped
    chunks = journal.slots // journal.chunk_slots - 1
    counted = evicted * chunks * (journal.chunk_slots - 1)
    unread = 0
    for number in range(journal.live(Live.SEGMENTS)):
        if number not in journal.segments:
            base = number * journal.slots
            held = count(clip(slots, base, base + journal.slots))
            unread += max(0, chunks * (journal.chunk_slots - 1) - held)
    return dropped - counted + min(counted, unread)


def end_state(journal: JournalReader, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How a rank ended, by what somebody saw, else by what its journal and process say."""
    seen = dict(state or {})
    if not seen.get("state"):
        seen["state"] = _derived(journal)
        seen.setdefault("source", "journal")
    if seen["state"] in ("clean", "exit"):
        for fact in journal.definitions.facts:
            if fact.name == "exception":
                seen = {**_object(fact.value), **seen, "state": "exception"}
            elif fact.name == "exit_code" and seen["state"] == "clean":
                seen = {"code": json.loads(fact.value), **seen, "state": "exit"}
    return {**seen, "attempt": journal.attempt, "rank": journal.rank, "stem": journal.stem}


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def _derived(journal: JournalReader) -> str:
    if journal.stopped:
        return "clean"
    if not journal.alive():
        return "vanished"
    here = journal.identity.get("boot_id", boot_id()) == boot_id()
    return "stopped" if here and process_state(journal.pid) in ("T", "t") else "running"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, all or nothing; one that is there already stays."""
    if not path.exists():
        with contextlib.suppress(FileExistsError), temporary(path) as scratch:
            scratch.write_text(json.dumps(value, default=str))
