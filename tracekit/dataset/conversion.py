"""Journals become Parquet, a batch at a time, each record once however often this is killed.

A batch says which slots of the journal it holds, and its last file makes it count. The lock on
the journal keeps two converters from taking the same slots; the kernel drops it with its holder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit.dataset._ending import (
    Ending,
    closed_in,
    end_state,
    look,
    lost_records,
    write_json,
)
from tracekit.dataset._listing import Listing, covered, list_files
from tracekit.dataset.decode import Origin, decode
from tracekit.dataset.facts import fact_rows, summary, table_of
from tracekit.dataset.parts import (
    Held,
    batch_name,
    part_folder,
    write_file,
)
from tracekit.errors import UsageError
from tracekit.journal.format import Live
from tracekit.journal.reader import JournalReader
from tracekit.journal.records import grouped
from tracekit.journal.slots import Run, merge

__all__ = [
    "Converted",
    "convert",
    "drop_covered_segments",
    "finalize",
    "origin_of",
    "run_id_of",
    "run_json",
]

_BATCH_ROWS = 200_000
_PORTION_RECORDS = 1 << 15


@dataclass(slots=True)
class Converted:
    """What a conversion wrote; ``busy`` when another process was at it and nothing was done."""

    spans: int = 0
    events: int = 0
    facts: int = 0
    files: list[Path] = field(default_factory=list)
    busy: bool = False
    final: bool = False
    """Everything of the journal is in files now, its open spans too."""


def origin_of(journal: JournalReader, run_dir: Path) -> Origin:
    """What the rows of a journal have in common."""
    run_id = str(journal.identity.get("uid") or run_id_of(run_dir))
    return Origin(run_id, journal.attempt, journal.rank, journal.offset_ns)


def run_json(run_dir: Path) -> dict[str, Any]:
    """What ``run.json`` says of a run; nothing where it cannot be read."""
    try:
        held = json.loads((run_dir / "run.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


def run_id_of(run_dir: Path) -> str:
    """The id of a run: what ``run.json`` says, else the name of its directory."""
    return str(run_json(run_dir).get("uid") or run_dir.resolve().name)


def convert(
    journal: JournalReader, run_dir: Path, *, least_records: int = 1, sync: bool = False
) -> Converted:
    """Write what the journal holds and no file of the run does yet.

    Writes nothing when there are fewer than ``least_records`` new records and no new facts, or
    while rank or run are not known for good. Safe to be killed and to be called by several
    processes at once. With ``sync`` the files are on the disk when it returns.
    """
    if journal.provisional:
        return Converted()
    with _turn(journal) as refused:
        if refused is not None:
            return refused
        work = _Work(journal, run_dir, sync)
        if not work.finished:
            work.write_records(least_records)
        return work.done


def finalize(
    journal: JournalReader,
    run_dir: Path,
    state: Mapping[str, Any] | None = None,
    *,
    sync: bool = True,
) -> Converted:
    """Write all that is left of a journal nobody writes any more, and unlink it.

    Open spans become rows with ``is_open``, lasting until ``state["time_ns"]`` or the last
    instant known. ``state`` is the end state; without it, a stopped journal ended clean and any
    other vanished. Raises ``UsageError`` while the rank still records.
    """
    journal.refresh()
    if journal.writing():
        raise UsageError(f"{journal.path}: the rank still records (pid {journal.pid})")
    with _turn(journal) as refused:
        if refused is not None:
            return refused
        work = _Work(journal, run_dir, sync)
        if not work.finished:
            work.write_records(1, look(journal, state))
        folder = run_dir / f"attempt-{journal.attempt:03d}" / "ranks"
        write_json(folder / f"{journal.stem}.json", journal.identity)
        write_json(folder / f"{journal.stem}.end.json", end_state(journal, state))
        if sync and work.finished:
            _flush(work.listing)
        for path in (*(segment.path for segment in journal.segments.values()), *journal.ahead):
            path.unlink(missing_ok=True)
        journal.path.unlink(missing_ok=True)
        work.done.final = True
        return work.done


def drop_covered_segments(journal: JournalReader, run_dir: Path) -> list[Path]:
    """Unlink the segments that nobody writes and whose records are all in files on the disk."""
    listing = list_files(run_dir, journal.attempt, journal.rank)
    slots, _, _ = covered(listing, journal.attempt, journal.stem)
    dropped = []
    for segment in list(journal.segments.values()):
        over = not journal.writing() or segment.number < journal.live(Live.RETIRED)
        if over and journal.is_covered(segment, slots):
            dropped.append(segment)
    if dropped:
        _flush(listing)
    for segment in dropped:
        segment.path.unlink(missing_ok=True)
        del journal.segments[segment.number]
    return [segment.path for segment in dropped]


@contextlib.contextmanager
def _turn(journal: JournalReader) -> Iterator[Converted | None]:
    """Hold the journal; else what to answer: it is busy, or somebody else finished it."""
    with contextlib.ExitStack() as stack:
        refused: Converted | None = None
        try:
            if not stack.enter_context(journal.lock()):
                refused = Converted(busy=True)
        except FileNotFoundError:
            refused = Converted(final=True)
        yield refused


@dataclass(slots=True)
class _Batch:
    """What goes into one set of files: rows, and the slots they were in."""

    spans: list[pa.Table] = field(default_factory=list)
    events: list[pa.Table] = field(default_factory=list)
    slots: list[Run] = field(default_factory=list)
    rows: int = 0

    def add(self, tables: tuple[pa.Table, pa.Table]) -> None:
        """Add the rows of some records."""
        for rows, into in zip(tables, (self.spans, self.events), strict=True):
            if len(rows):
                into.append(rows)
                self.rows += len(rows)


class _Work:
    """One conversion, under the journal's lock."""

    def __init__(self, journal: JournalReader, run_dir: Path, sync: bool) -> None:
        self.journal = journal
        self.run_dir = run_dir
        self.sync = sync
        self.done = Converted()
        self.torn = 0
        self.written: list[tuple[Path, Held]] = []
        journal.refresh()
        self.origin = origin_of(journal, run_dir)
        self.listing: Listing = list_files(run_dir, journal.attempt, journal.rank)
        self.slots, self.defined, end = covered(self.listing, journal.attempt, journal.stem)
        self.finished = end is not None
        self._clean_up()

    def _clean_up(self) -> None:
        """Remove what a converter of this journal left behind when it was killed."""
        mine = f"part-{self.journal.process}-"
        for table in self.listing.files:
            folder = part_folder(self.run_dir, table, self.journal.attempt, self.journal.rank)
            with contextlib.suppress(OSError):
                for path in folder.iterdir():
                    if path.name.startswith(f".{mine}") and path.name.endswith(".tmp"):
                        path.unlink(missing_ok=True)
        for path in self.listing.dead:
            if path.name.startswith(mine):
                path.unlink(missing_ok=True)

    def write_records(self, least: int, end: Ending | None = None) -> None:
        """Write the new records, in batches; the last one carries the end."""
        journal = self.journal
        batch = _Batch()
        portion = min(_PORTION_RECORDS, _BATCH_ROWS)
        for records in grouped(journal.records(self.slots), portion):
            journal.read_definitions()
            self.torn += records.torn
            batch.add(decode(records, journal.definitions, self.origin, by_start=True))
            batch.slots += records.taken
            if batch.rows >= _BATCH_ROWS:
                self._write(batch)
                batch = _Batch()
        journal.read_definitions()
        facts = any(fact.end > self.defined for fact in journal.definitions.facts)
        if end is not None or facts or batch.rows >= max(1, least):
            self._write(batch, end)

    def _write(self, batch: _Batch, end: Ending | None = None) -> None:
        """Write one batch: the file of spans last, which makes it count."""
        journal, origin = self.journal, self.origin
        new = [fact for fact in journal.definitions.facts if fact.end > self.defined]
        facts = fact_rows(new, origin, journal.identity.get("host"))
        slots = merge(batch.slots)
        place = slots[0][0] if slots else self.slots[-1][1] if self.slots else 0
        self.slots = merge([*self.slots, *slots])
        final: dict[str, Any] | None = None
        if end is not None:
            lost = lost_records(journal, self.slots)
            opened = self._open_spans(end, batch.spans)
            batch.spans.append(opened)
            facts += summary(journal, origin, lost)
            final = {"open": len(opened), "dropped": lost, "torn": self.torn}
        held = Held(
            attempt=origin.attempt,
            rank=origin.rank,
            stem=journal.stem,
            slots=slots,
            defined=journal.definitions.end,
            ids=_id_range(batch.spans),
            spans=sum(map(len, batch.spans)),
            collectives=sum(len(rows) - rows["collective_op"].null_count for rows in batch.spans),
            world_size=journal.identity.get("world_size"),
            final=final,
        )
        name = batch_name(journal.process, place)
        by_table = {"facts": [table_of(facts)], "events": batch.events, "spans": batch.spans}
        for table, tables in by_table.items():
            if not any(map(len, tables)) and table != "spans":
                continue
            folder = part_folder(self.run_dir, table, origin.attempt, origin.rank)
            write_file(folder / name, table, tables, [held], sync=self.sync)
            self.done.files.append(folder / name)
        self.written.append((self.done.files[-1], held))
        self.defined = held.defined
        self.done.spans += held.spans
        self.done.events += sum(map(len, batch.events))
        self.done.facts += len(facts)

    def _open_spans(self, end: Ending, spans: list[pa.Table]) -> pa.Table:
        """The spans that no record closed, neither in this batch nor in files."""
        key = self.origin.attempt, self.journal.stem
        files = [*self.listing.journals.get(key, ()), *self.written]
        before = closed_in(files, end.rows[:, 7].tolist())
        return end.open_spans(self.journal, self.origin, [*spans, before])


def _id_range(spans: list[pa.Table]) -> tuple[int, int]:
    ids = [rows["span_id"].to_numpy() for rows in spans if len(rows)]
    ends = [int(end) for some in ids for end in (some.min(), some.max())]
    return min(ends, default=0), max(ends, default=0)


def _flush(listing: Listing) -> None:
    """Wait until the files are on the disk."""
    for footers in listing.files.values():
        for footer in footers:
            file = os.open(footer.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(file)
            finally:
                os.close(file)
