"""Opening a run: parts, compacted files and journals in any mix, live or after a crash."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.dataset._opening import Opening
from tracekit.dataset._remainder import Scratch
from tracekit.dataset._sidecars import attempt_folders
from tracekit.dataset.coverage import Attempt, Coverage
from tracekit.dataset.schema import TABLES, cast
from tracekit.errors import InputError

__all__ = ["Run", "open_run"]


@dataclass(eq=False)
class Run:
    """The tables of a run. Close it: what did not fit into memory is in scratch files."""

    path: Path
    run_id: str
    label: str
    attempts: tuple[Attempt, ...]
    coverage: Coverage
    sources: dict[str, list[pa.Table | Path]] = field(repr=False)
    """Per table the Parquet files and Arrow tables it is made of, in no order."""
    _scratch: Scratch = field(repr=False)

    def __post_init__(self) -> None:
        self._finalizer = weakref.finalize(self, self._scratch.remove)

    @property
    def world_size(self) -> int:
        """Ranks that the last attempt should have."""
        return self.attempts[-1].world_size if self.attempts else 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the last attempt that were found."""
        return self.attempts[-1].ranks if self.attempts else ()

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a whole table; for tests and small runs, engines read the sources."""
        schema = TABLES[name]
        if columns is not None:
            schema = pa.schema([schema.field(column) for column in columns])
        parts = [schema.empty_table()]
        for source in self.sources[name]:
            if isinstance(source, Path):
                file = pq.ParquetFile(source)
                names = set(file.schema_arrow.names)
                there = [column for column in schema.names if column in names]
                source = file.read(columns=there)
            parts.append(cast(source, schema))
        return pa.concat_tables(parts).unify_dictionaries()

    def close(self) -> None:
        """Remove the scratch files."""
        self._finalizer()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_run(path: Path) -> Run:
    """Open a run directory, whatever state it is in.

    What cannot be read is skipped, named and counted in ``coverage``. Raises ``InputError`` when
    there is nothing to open: no such directory, not one of a run, nothing in it.
    """
    _check(path)
    scratch = Scratch()
    try:
        return Run(path, *Opening(path, scratch).gather(), scratch)
    except BaseException:
        scratch.remove()
        raise


def _check(path: Path) -> None:
    """Say what is wrong with a path that is not a run directory."""
    try:
        if not path.exists():
            raise InputError(path, "does not exist")
        if not path.is_dir():
            raise InputError(path, "a file, not a run directory")
        entries = sorted(path.iterdir())
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    if not entries:
        raise InputError(path, "the directory is empty")
    if _is_run(path):
        return
    runs = [entry.name for entry in entries if entry.is_dir() and _is_run(entry)]
    if runs:
        named = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
        raise InputError(path, f"not a run directory but a folder of runs: {named}")
    raise InputError(path, "not a run directory: no run.json, no attempt-000, no spans in it")


def _is_run(path: Path) -> bool:
    return (
        (path / "run.json").is_file()
        or any((path / table).is_dir() for table in TABLES)
        or bool(attempt_folders(path))
    )
