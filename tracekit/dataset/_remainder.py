"""What journals hold and no file does: decoded to memory, or to scratch files when it is much."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tracekit.dataset._ending import Ending, closed_in, look, lost_records
from tracekit.dataset._listing import Listing, covered
from tracekit.dataset.conversion import origin_of
from tracekit.dataset.decode import decode
from tracekit.dataset.facts import FactRow, fact_rows, summary
from tracekit.dataset.parts import write_file
from tracekit.errors import InputError
from tracekit.journal.format import Live
from tracekit.journal.reader import JournalReader, open_journal
from tracekit.journal.records import grouped
from tracekit.journal.slots import Run

__all__ = ["Opened", "Rest", "Scratch", "open_journals", "rest_of"]

_IN_MEMORY_ROWS = 2 << 20
_PORTION_RECORDS = 1 << 15
_TRIES = 5


@dataclass(slots=True)
class Opened:
    """The journals of a run, mapped, each with its open spans as they were then."""

    journals: list[tuple[JournalReader, Ending]] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    found: int = 0


def open_journals(heads: Callable[[], list[Path]]) -> Opened:
    """Map the journals whose heads ``heads`` finds.

    Ranks may rename a journal while it is opened (their rank became known) and agents may finish
    one; then all is looked for again.
    """
    opened = Opened()
    for _ in range(_TRIES):
        opened = Opened()
        found = heads()
        _allow_files(sum(map(_entries, {head.parent for head in found})))
        whole = True
        for head in found:
            whole &= _open(head, opened)
        if whole:
            break
        time.sleep(0.01)
    return opened


def _open(head: Path, opened: Opened) -> bool:
    """Open one journal; False when it moved or lacks segments that must be there."""
    try:
        journal = open_journal(head)
    except FileNotFoundError:
        return False
    except InputError as error:
        opened.found += 1
        opened.skipped.append((head, error.reason))
        return True
    opened.found += 1 + len(journal.segments) + len(journal.skipped)
    opened.skipped += journal.skipped
    opened.journals.append((journal, look(journal)))
    needed = range(journal.live(Live.RETIRED), journal.live(Live.SEGMENTS))
    return not journal.writing() or all(number in journal.segments for number in needed)


def _entries(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _allow_files(number: int) -> None:
    """Raise the limit of open files: a mapped segment keeps one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _entries(Path("/proc/self/fd")) + 256
    if soft != resource.RLIM_INFINITY and wanted > soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Scratch:
    """Tables of spans and events that pile up: the first rows in memory, the rest in files."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._rows = 0
        self._files = 0

    def keep(self, table: str, rows: pa.Table) -> pa.Table | Path:
        """The rows, or the scratch file they went to."""
        self._rows += len(rows)
        if self._rows <= _IN_MEMORY_ROWS:
            return rows
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="tracekit-"))
        self._files += 1
        path = self.folder / f"{table}-{self._files:06d}.parquet"
        write_file(path, table, [rows])
        return path

    def remove(self) -> None:
        """Remove the scratch files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


@dataclass(slots=True)
class Rest:
    """What one journal adds to the files of a run."""

    spans: list[pa.Table | Path] = field(default_factory=list)
    events: list[pa.Table | Path] = field(default_factory=list)
    facts: list[FactRow] = field(default_factory=list)
    rows: int = 0
    collectives: int = 0
    opened: int = 0
    lost: int = 0
    torn: int = 0
    slots: list[Run] = field(default_factory=list)
    """Slots that the journal's segments or files hold."""


def rest_of(
    journal: JournalReader, end: Ending, listing: Listing, run_dir: Path, scratch: Scratch
) -> Rest:
    """Decode what no file holds; nothing of a journal that was finished meanwhile."""
    rest = Rest()
    slots, defined, finished = covered(listing, journal.attempt, journal.stem)
    rest.slots = slots
    if finished is not None:
        return rest
    origin = origin_of(journal, run_dir)
    files = listing.journals.get((journal.attempt, journal.stem), ())
    known = [closed_in(files, end.rows[:, 7].tolist())]
    for records in grouped(journal.records(slots), _PORTION_RECORDS):
        rest.torn += records.torn
        rest.slots += records.taken
        journal.read_definitions()
        spans, events = decode(records, journal.definitions, origin)
        known.append(spans.select(["span_id"]))
        rest.rows += len(spans)
        rest.collectives += len(spans) - spans["collective_op"].null_count
        if len(spans):
            rest.spans.append(scratch.keep("spans", spans))
        if len(events):
            rest.events.append(scratch.keep("events", events))
    opened = end.open_spans(journal, origin, known)
    rest.opened = len(opened)
    if len(opened):
        rest.spans.append(opened)
    journal.read_definitions()
    new = [fact for fact in journal.definitions.facts if fact.end > defined]
    rest.facts = fact_rows(new, origin, journal.identity.get("host"))
    rest.lost = lost_records(journal, slots)
    rest.facts += summary(journal, origin, rest.lost)
    return rest
