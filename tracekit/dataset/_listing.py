"""Which Parquet files of a run count at this moment, while others write and compact it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.dataset.parts import Footer, Held, part_folder, read_footer
from tracekit.dataset.schema import TABLES
from tracekit.errors import InputError
from tracekit.journal.slots import Run, merge

__all__ = ["Listing", "covered", "list_files"]

Skipped = tuple[Path, str]
_SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of each table that count, those that do not any more, and the unreadable ones."""

    files: dict[str, list[Footer]] = field(default_factory=dict)
    dead: list[Path] = field(default_factory=list)
    unsure: list[Footer] = field(default_factory=list)
    """Files of batches whose file of spans is there and cannot be read."""
    skipped: list[Skipped] = field(default_factory=list)
    found: int = 0
    journals: dict[tuple[int, str], list[tuple[Path, Held]]] = field(default_factory=dict)
    """Per attempt and stem the files of spans that hold something of that journal, and what."""

    def held(self) -> Iterable[Held]:
        """What the files of spans hold of journals; they speak for their batches."""
        return (held for footer in self.files["spans"] for held in footer.held)


def covered(listing: Listing, attempt: int, stem: str) -> tuple[list[Run], int, Held | None]:
    """Slots and bytes of definitions of a journal that files hold; and its end, if they do."""
    mine = [held for _, held in listing.journals.get((attempt, stem), ())]
    slots = merge(run for held in mine for run in held.slots)
    defined = max((held.defined for held in mine), default=0)
    return slots, defined, next((held for held in mine if held.final), None)


def list_files(run_dir: Path, attempt: int | None = None, rank: int | None = None) -> Listing:
    """List a run's files, or those that may hold rows of one rank, as they were at one moment.

    A compaction links its file before it unlinks those it replaces. So a list that was read
    twice with the same result has all rows, and a file that is gone when it is opened means
    that the list has to be made anew.
    """
    while True:
        paths = _names(run_dir, attempt, rank)
        if paths != _names(run_dir, attempt, rank):
            continue
        try:
            return _sorted_out(paths)
        except FileNotFoundError:
            continue


def _names(run_dir: Path, attempt: int | None, rank: int | None) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for table in TABLES:
        top = run_dir / table
        paths: list[Path] = []
        if attempt is None or rank is None:
            for folder, _, names in os.walk(top):
                paths += [Path(folder, name) for name in names if name.endswith(_SUFFIX)]
        else:
            for place in (top, part_folder(run_dir, table, attempt, rank)):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    paths += [path for path in place.iterdir() if path.name.endswith(_SUFFIX)]
        found[table] = sorted(path for path in paths if not path.name.startswith("."))
    return found


def _sorted_out(paths: dict[str, list[Path]]) -> Listing:
    listing = Listing(found=sum(map(len, paths.values())))
    for table, of_table in paths.items():
        footers: list[Footer] = []
        for path in of_table:
            footer = _footer(path, table)
            if isinstance(footer, Footer):
                footers.append(footer)
            else:
                listing.skipped.append((path, footer))
        listing.files[table] = _without_replaced(footers, listing.dead)
    readable = {name for footer in listing.files["spans"] for name in (footer.name, *footer.leaves)}
    damaged = {path.name for path in paths["spans"]} - readable
    for table in TABLES:
        counting = []
        for footer in listing.files[table]:
            # What came from no journal has no batch, and a compacted file stands for itself.
            journals = any(held.stem for held in footer.held)
            if not journals or footer.replaces or footer.name in readable:
                counting.append(footer)
            elif footer.name in damaged:
                listing.unsure.append(footer)
            else:
                listing.dead.append(footer.path)
        listing.files[table] = counting
    for footer in listing.files["spans"]:
        for held in footer.held:
            listing.journals.setdefault((held.attempt, held.stem), []).append((footer.path, held))
    return listing


def _footer(path: Path, table: str) -> Footer | str:
    """A file's footer, or why it cannot be read."""
    try:
        return read_footer(path, table)
    except InputError as error:
        return error.reason
    except FileNotFoundError:
        if path.is_symlink():
            return "a link to nothing"
        raise


def _without_replaced(footers: list[Footer], dead: list[Path]) -> list[Footer]:
    """Leave out every file all of whose rows another one has; of equals the first counts."""
    compacted = [footer for footer in footers if footer.replaces]
    counting = []
    for footer in footers:
        if any(_supersedes(other, footer) for other in compacted):
            dead.append(footer.path)
        else:
            counting.append(footer)
    return counting


def _supersedes(other: Footer, footer: Footer) -> bool:
    if other is footer or not footer.leaves <= other.leaves:
        return False
    return footer.leaves < other.leaves or (other.name < footer.name or not footer.replaces)
