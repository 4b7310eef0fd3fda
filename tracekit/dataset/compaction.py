"""Many small files become few sorted ones, without a moment in which rows are lost or twice.

A compacted file names all files whose rows it took; from the instant it has its name those do
not count, and they are unlinked after. Killed in between, the next compaction cleans up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from tracekit.dataset._duplicates import duplicates
from tracekit.dataset._listing import list_files
from tracekit.dataset._merge import OUT_ROWS, Group, groups_of, merged, most_at_once
from tracekit.dataset._remainder import open_journals
from tracekit.dataset._sidecars import attempt_folders
from tracekit.dataset.conversion import finalize
from tracekit.dataset.parts import Footer, Held, write_file
from tracekit.dataset.schema import TABLES
from tracekit.errors import InputError
from tracekit.journal.format import Live
from tracekit.journal.process import boot_id
from tracekit.journal.reader import JournalReader, find_journals
from tracekit.journal.slots import merge

__all__ = ["Compacted", "compact"]

_MOST_ROWS = 3 << 20
_FOREIGN_SILENT_NS = 600_000_000_000
_TIME = {"spans": "start_ns", "events": "time_ns"}


@dataclass(slots=True)
class Compacted:
    """What a compaction did."""

    files: list[Path] = field(default_factory=list)
    """Files written."""
    replaced: int = 0
    rows: int = 0
    finished: list[str] = field(default_factory=list)
    """Journals of dead ranks that were converted."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def compact(run_dir: Path) -> Compacted:
    """Convert what dead ranks left, and merge the files of each attempt into one a table.

    Safe to be killed and to be repeated; live ranks may go on. Raises ``InputError`` when another
    process compacts the run.
    """
    done = Compacted()
    with _alone(run_dir):
        _finish_journals(run_dir, done)
        _clean_up(run_dir)
        listing = list_files(run_dir)
        done.skipped += listing.skipped
        for path in listing.dead:
            path.unlink(missing_ok=True)
        losers = duplicates(listing.held())[1]
        inputs: dict[tuple[int, str], list[Footer]] = {}
        for table, footers in listing.files.items():
            for footer in footers:
                attempts = {held.attempt for held in footer.held}
                lost = any((held.attempt, held.stem) in losers for held in footer.held)
                if len(attempts) == 1 and not lost:
                    inputs.setdefault((attempts.pop(), table), []).append(footer)
        for (attempt, table), footers in sorted(inputs.items()):
            if len(footers) > 1 or not footers[0].replaces:
                _compact(run_dir, attempt, table, footers, done)
        _remove_empty_folders(run_dir)
    return done


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Lock the directory itself where its file system can; nothing is left behind."""
    try:
        folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(run_dir, error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(run_dir, "is being compacted by another process") from None
        except OSError:
            pass  # no locks there; two compactions waste work, their results are told apart
        yield
    finally:
        os.close(folder)


def _clean_up(run_dir: Path) -> None:
    """Remove the unfinished files of a compaction that was killed."""
    for table in TABLES:
        for path in (run_dir / table).glob(".compact-*.tmp"):
            path.unlink(missing_ok=True)


def _remove_empty_folders(run_dir: Path) -> None:
    """Remove the folders of ranks whose parts are compacted, unless more may come."""
    if _heads(run_dir):
        return
    for table in TABLES:
        for folder, _, _ in os.walk(run_dir / table, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _heads(run_dir: Path) -> list[Path]:
    folders = attempt_folders(run_dir).values()
    return [head for folder in folders for head in find_journals(folder / "journal")]


def _finish_journals(run_dir: Path, done: Compacted) -> None:
    """Convert the journals of ranks that are gone."""
    opened = open_journals(lambda: _heads(run_dir))
    done.skipped += opened.skipped
    for journal, _ in opened.journals:
        if not journal.writing() and not _perhaps_alive(journal):
            result = finalize(journal, run_dir)
            if result.final:
                done.finished.append(journal.stem)


def _perhaps_alive(journal: JournalReader) -> bool:
    """Whether a journal of another host or boot may still be written: be patient with it."""
    if journal.stopped or journal.identity.get("boot_id", boot_id()) == boot_id():
        return False
    beat = journal.live(Live.HEARTBEAT) + journal.offset_ns
    return time.time_ns() - beat < _FOREIGN_SILENT_NS


def _compact(
    run_dir: Path, attempt: int, table: str, footers: Sequence[Footer], done: Compacted
) -> None:
    """Merge files of one table and attempt into one, then unlink them."""
    held = _merged_held(footers)
    leaves = frozenset[str]().union(*(footer.leaves for footer in footers))
    final = run_dir / table / f"compact-{attempt:03d}-{secrets.token_hex(6)}.parquet"
    with _Runs(final) as runs:
        groups = [group for footer in footers for group in _groups(footer.path)]
        rows = runs.merged(groups, table)
        write_file(final, table, rows, held, leaves, row_group=OUT_ROWS, sync=True)
    done.files.append(final)
    done.replaced += len(footers)
    done.rows += sum(footer.rows for footer in footers)
    for footer in footers:
        footer.path.unlink(missing_ok=True)


def _groups(path: Path) -> list[Group]:
    return groups_of(path, ("step", "rank", "start_ns", "time_ns"))


class _Runs:
    """Sorted files beside the final one, for when too many files overlap to be merged at once."""

    def __init__(self, final: Path) -> None:
        self._final = final
        self._made: list[Path] = []

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._made:
            path.unlink(missing_ok=True)

    def merged(self, groups: list[Group], table: str) -> Iterator[pa.Table]:
        """All rows of the groups in order; facts, which have no steps, as they are."""
        if table == "facts":
            yield from (group.read(TABLES[table]) for group in groups)
            return
        overlap = most_at_once(groups)
        while overlap > _MOST_ROWS:
            packs = _packs(groups)
            groups = [group for pack in packs for group in self._run(pack, table)]
            before, overlap = overlap, most_at_once(groups)
            if overlap >= before:
                break  # one step alone is as large
        yield from merged(groups, TABLES[table], _TIME[table])

    def _run(self, groups: list[Group], table: str) -> list[Group]:
        path = self._final.with_name(f".{self._final.name}.{len(self._made)}.tmp")
        self._made.append(path)
        write_file(path, table, merged(groups, TABLES[table], _TIME[table]))
        return _groups(path)


def _packs(groups: list[Group]) -> list[list[Group]]:
    """Groups by file, as many files together as can be merged at once."""
    by_file: dict[Path, list[Group]] = {}
    for group in groups:
        by_file.setdefault(group.path, []).append(group)
    packs: list[list[Group]] = []
    for of_file in by_file.values():
        if packs and most_at_once([*packs[-1], *of_file]) <= _MOST_ROWS:
            packs[-1] += of_file
        else:
            packs.append(list(of_file))
    return packs


def _merged_held(footers: Sequence[Footer]) -> list[Held]:
    """What the files hold together, one entry a journal."""
    together: dict[tuple[int, int, str], Held] = {}
    for held in (held for footer in footers for held in footer.held):
        key = held.rank, held.attempt, held.stem
        one = together.get(key)
        if one is None:
            together[key] = held
            continue
        sizes = [size for size in (one.world_size, held.world_size) if size]
        ids = [end for end in (*one.ids, *held.ids) if end]
        together[key] = replace(
            one,
            slots=merge([*one.slots, *held.slots]),
            defined=max(one.defined, held.defined),
            ids=(min(ids, default=0), max(ids, default=0)),
            spans=one.spans + held.spans,
            collectives=one.collectives + held.collectives,
            world_size=max(sizes, default=None),
            final=one.final or held.final,
        )
    return [together[key] for key in sorted(together)]
