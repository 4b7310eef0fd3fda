"""What reads foreign files into a run: the shape of an importer, and which ones there are.

An importer knows a file by its content, reads it with bounded memory, and never raises on what
it finds in it: what cannot be used is skipped, named and counted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import pyarrow as pa

from tracekit.dataset import write_table
from tracekit.dataset.facts import FactRow, table_of
from tracekit.errors import InputError

__all__ = [
    "BUILT_IN",
    "HEAD",
    "Found",
    "Importer",
    "Intake",
    "find_files",
    "importers",
    "read_files",
]

Progress = Callable[[str], None]

HEAD = 1 << 16
"""Bytes of a file by which its kind is told."""

BUILT_IN: Mapping[str, str] = {
    "xplane": "tracekit.adapters.xplane:XPlaneImporter",
    "flight_recorder": "tracekit.adapters.flight_recorder:FlightRecorderImporter",
    "nccl_inspector": "tracekit.adapters.nccl_inspector:NcclInspectorImporter",
    "nccl_ras": "tracekit.adapters.nccl_ras:NcclRasImporter",
    "nccl_log": "tracekit.adapters.nccl_log:NcclLogImporter",
    "nccl_tests": "tracekit.adapters.nccl_tests:NcclTestsImporter",
    "text_logs": "tracekit.adapters.text_logs:TextLogs",
}
"""The importers of tracekit by name, in the order in which they are asked: those that know their
files by the strictest rule first. None is imported before a file has to be read."""

_GROUP = "tracekit.importers"
_ON_CONTENT = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


@runtime_checkable
class Importer(Protocol):
    """Reads one kind of foreign files."""

    name: str
    """What the kind is called, in options and reports."""

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is of this kind; cheap, never by its name alone.
        ``head`` is the whole file where that is shorter than ``HEAD`` bytes."""

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read files of this kind as one run; what is wrong with a file is told the intake."""


@dataclass(slots=True)
class Intake:
    """Where importers put rows: a run directory; and what they say about the files."""

    run_dir: Path
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    attempt: int = 0
    read: dict[Path, str] = field(default_factory=dict)
    """The files that were used, and of which kind they are."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Files that could not be used, or parts of them, and why."""
    notes: list[tuple[Path, str]] = field(default_factory=list)
    """What a reader should know of files that were used."""
    rows: dict[str, int] = field(default_factory=dict)
    """How many rows of each table were written."""
    size: int = 0
    """Bytes of the files that were used."""

    def took(self, path: Path, kind: str) -> None:
        """Count a file as used."""
        self.read[path] = kind
        self.size += path.stat().st_size

    def skip(self, path: Path, reason: str) -> None:
        """Say why a file, or a part of it, is not used."""
        self.skipped.append((path, " ".join(reason.split())))

    def note(self, path: Path, text: str) -> None:
        """Say something of a file that is used all the same."""
        self.notes.append((path, text))

    def write(self, table: str, rows: pa.Table, world_size: int | None = None) -> None:
        """Write rows of a table; the columns of ``dataset/schema.py`` that are known."""
        if len(rows):
            write_table(self.run_dir, table, rows, world_size=world_size)
            self.rows[table] = self.rows.get(table, 0) + len(rows)

    def write_facts(self, facts: Iterable[tuple[int | None, str | None, str, Any]]) -> None:
        """Write facts: rank, host, name and value, which is anything JSON can hold."""
        rows = [
            FactRow(self.run_id, self.attempt, rank, name, value, host=host)
            for rank, host, name, value in facts
        ]
        self.write("facts", table_of(rows))


@dataclass(slots=True)
class Found:
    """The foreign files in some paths."""

    by_kind: dict[str, list[Path]] = field(default_factory=dict)
    unknown: list[Path] = field(default_factory=list)
    """Files that no importer knows."""
    unreadable: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many files there are, of known and of unknown kinds."""
        known = {path for paths in self.by_kind.values() for path in paths}
        return len(known) + len(self.unknown) + len(self.unreadable)


def importers() -> dict[str, Importer]:
    """All importers by name: the built-in ones, then those of other packages that can be used."""
    found = {name: _made(module) for name, module in BUILT_IN.items()}
    for point in entry_points(group=_GROUP):
        if point.name not in found:
            try:
                offered = point.load()()
            except Exception:  # another package's import may raise anything
                continue
            if isinstance(offered, Importer):
                found[point.name] = offered
    return found


def _made(place: str) -> Importer:
    module, _, name = place.partition(":")
    return cast("Importer", getattr(import_module(module), name)())


def find_files(paths: Iterable[Path], known: Mapping[str, Importer]) -> Found:
    """Look at every file in the paths and in the folders of them, whatever it is called.

    Raises ``InputError`` for a path that does not exist.
    """
    found = Found()
    seen: set[Path] = set()
    for path in (inner for given in paths for inner in _files(given)):
        if path in seen:
            continue
        seen.add(path)
        try:
            kinds = _kinds(path, known)
        except OSError as error:
            found.unreadable.append((path, error.strerror or str(error)))
            continue
        if not kinds:
            found.unknown.append(path)
        for kind in kinds:
            found.by_kind.setdefault(kind, []).append(path)
    return found


def _kinds(path: Path, known: Mapping[str, Importer]) -> list[str]:
    """The kind of a file; of logs, which hold lines of several programs, all that share."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if not head:  # it has no content to be known by
        named = ((name, getattr(importer, "expects", None)) for name, importer in known.items())
        return [name for name, expects in named if expects is not None and expects(path)][:1]
    found: list[str] = []
    for name, importer in known.items():
        shares = getattr(importer, "shares", False)
        if (shares or not found) and importer.recognizes(path, head):
            found.append(name)
            alone = getattr(importer, "alone", None)
            if not shares or (alone is not None and alone(head)):
                break
    return found


def _files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise InputError(path, "does not exist")
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            inner = Path(folder, name)
            if not name.startswith(".") and inner.is_file():
                yield inner


def read_files(
    found: Found, known: Mapping[str, Importer], intake: Intake, progress: Progress
) -> None:
    """Read what was found. An importer that fails all the same costs its own files alone."""
    intake.skipped += found.unreadable
    for kind, paths in found.by_kind.items():
        wrong = _read(known[kind], paths, intake, progress)
        if wrong:
            for path in paths:
                if path not in intake.read:
                    intake.skip(path, wrong)


def _read(
    importer: Importer, paths: Sequence[Path], intake: Intake, progress: Progress
) -> str | None:
    """Read files of one kind; why that failed as a whole, if it did."""
    try:
        importer.read(paths, intake, progress)
    except OSError:
        raise  # nowhere to write to
    except (pa.ArrowException, MemoryError, *_ON_CONTENT) as error:
        return f"cannot be read: {type(error).__name__}: {error}"
    return None
