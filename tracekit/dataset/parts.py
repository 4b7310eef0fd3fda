"""Parquet files of a run: written once, never overwritten, each saying what it holds.

A batch is up to three files of one name, one a table. The file of ``spans`` is written last and
makes the batch count; files of a batch without it are what a killed converter left behind.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset.schema import SCHEMA_VERSION, TABLES, cast, mismatch
from tracekit.errors import FormatError, InputError, VersionError
from tracekit.journal.slots import Run

__all__ = [
    "Footer",
    "Held",
    "batch_name",
    "part_folder",
    "publish",
    "read_footer",
    "temporary",
    "write_file",
    "write_table",
]

_COVERS = b"tracekit.covers"
_REPLACES = b"tracekit.replaces"
_SCHEMA = b"tracekit.schema"
_DELTA = "DELTA_BINARY_PACKED"
_DELTAS = {
    "step", "span_id", "parent_id", "start_ns", "duration_ns", "launch_ns", "collective_seq",
    "time_ns",
}  # fmt: skip
_PLAIN = {"is_open", "value", "text"}
# What row groups are chosen by. Statistics of all columns cost a third of the writing.
_STATISTICS = {"attempt", "rank", "step", "start_ns", "time_ns", "span_id"}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@dataclass(frozen=True, slots=True)
class Held:
    """What a file holds of one journal; ``stem`` is empty for rows that come from none.

    ``slots`` and ``defined`` (bytes of definitions) are the parts of the journal that need not be
    read any more. ``ids`` is the range of span ids. ``final`` is there once the journal's open
    spans and counters were taken too: nothing of it is needed then.
    """

    attempt: int
    rank: int
    stem: str
    slots: list[Run] = field(default_factory=list)
    defined: int = 0
    ids: tuple[int, int] = (0, 0)
    spans: int = 0
    collectives: int = 0
    world_size: int | None = None
    final: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The form in a footer; what is nothing is left out."""
        values = {name: getattr(self, name) for name in self.__slots__}
        always = ("rank", "slots", "stem")
        return {name: value for name, value in values.items() if value or name in always}


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's own word on what it is."""

    path: Path
    table: str
    rows: int
    held: tuple[Held, ...]
    replaces: frozenset[str]
    """Names of the files whose rows it has taken over, also those they had taken over."""

    @property
    def name(self) -> str:
        """The name by which ``replaces`` and the files of one batch know it."""
        return self.path.name

    @property
    def leaves(self) -> frozenset[str]:
        """Whose rows these are: the names of the files they were first written to."""
        return self.replaces or frozenset((self.name,))


def batch_name(process: str, place: int) -> str:
    """A file name that is never given twice; names of one rank sort by place, usually a slot."""
    return f"part-{process}-{place:010d}-{secrets.token_hex(4)}.parquet"


def part_folder(run_dir: Path, table: str, attempt: int, rank: int) -> Path:
    """Where the parts of a rank lie."""
    return run_dir / table / f"attempt={attempt}" / f"rank={rank:05d}"


@contextlib.contextmanager
def temporary(final: Path) -> Iterator[Path]:
    """A name beside ``final`` to write to; given its final name at the end, or removed.

    Raises ``FileExistsError`` when the final name is taken.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    path = final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield path
        publish(path, final)
    finally:
        path.unlink(missing_ok=True)


def publish(path: Path, final: Path) -> None:
    """Give a file its final name, all or nothing, never over another file."""
    try:
        os.link(path, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if final.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from None
        os.rename(path, final)


def write_file(
    final: Path,
    table: str,
    tables: Iterable[pa.Table],
    held: Sequence[Held] = (),
    replaces: Iterable[str] = (),
    *,
    row_group: int = 32 << 10,
    sync: bool = False,
) -> None:
    """Write rows of one table of a run as one file; with ``sync`` it is on the disk then."""
    schema = TABLES[table]
    covers = [one.as_json() for one in held]
    metadata = {_SCHEMA: str(SCHEMA_VERSION).encode()}
    if covers:
        metadata[_COVERS] = json.dumps(covers[0] if len(covers) == 1 else covers).encode()
    names = sorted(replaces)
    if names:
        metadata[_REPLACES] = json.dumps(names).encode()
    deltas = {name: _DELTA for name in schema.names if name in _DELTAS}
    dictionary = [name for name in _leaves(schema) if name not in _DELTAS | _PLAIN]
    with temporary(final) as path, open(path, "xb") as file:
        with pq.ParquetWriter(
            file,
            schema.with_metadata(metadata),
            compression="zstd",
            compression_level=1,
            use_dictionary=dictionary,
            column_encoding=deltas,
            write_statistics=[name for name in schema.names if name in _STATISTICS],
        ) as writer:
            for rows in tables:
                if len(rows):
                    writer.write_table(rows, row_group_size=row_group)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns as Parquet names them; values of maps are mostly different."""
    return [
        f"{name}.key_value.key" if pa.types.is_map(schema.field(name).type) else name
        for name in schema.names
    ]


def write_table(
    run_dir: Path, table: str, rows: pa.Table, *, world_size: int | None = None
) -> list[Path]:
    """Write rows that come from no journal as parts of a run, one a rank; for importers and tests.

    Columns that may be null may be missing; raises ``InputError`` for what does not fit.
    """
    wrong = mismatch(rows.schema, TABLES[table])
    if wrong:
        raise InputError(run_dir / table, wrong)
    rows = cast(rows, TABLES[table])
    groups = rows.group_by(["attempt", "rank"]).aggregate([]).to_pylist()
    written = []
    for group in groups:
        attempt, rank = group["attempt"], group["rank"]
        of_rank = pc.is_null(rows["rank"]) if rank is None else pc.equal(rows["rank"], rank)
        mine = rows.filter(pc.and_(of_rank, pc.equal(rows["attempt"], attempt)))
        held = [] if rank is None else [Held(attempt, rank, "", world_size=world_size)]
        folder = part_folder(run_dir, table, attempt, rank or 0)
        final = folder / batch_name("table", 0)
        write_file(final, table, [mine], held)
        written.append(final)
    return written


def read_footer(path: Path, table: str) -> Footer:
    """What a file is.

    Raises ``FileNotFoundError`` when it is gone, ``FormatError`` when it is empty, cut, not
    Parquet or has other columns, ``VersionError`` when a newer tracekit wrote it.
    """
    try:
        status = path.stat()
        return _read_footer(path, table, status.st_ino, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


@lru_cache(maxsize=1 << 14)
def _read_footer(path: Path, table: str, inode: int, size: int, time_ns: int) -> Footer:
    if not size:
        raise FormatError(path, "the file is empty")
    try:
        found = pq.read_metadata(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = "cut or not a Parquet file" if isinstance(error, pa.ArrowInvalid) else str(error)
        raise FormatError(path, reason) from error
    metadata: dict[bytes, bytes] = found.metadata or {}
    try:
        version = int(metadata.get(_SCHEMA, b"0"))
        covers = json.loads(metadata.get(_COVERS, b"[]"))
        replaces = frozenset(json.loads(metadata.get(_REPLACES, b"[]")))
        listed = covers if isinstance(covers, list) else [covers]
        held = tuple(_held(one) for one in listed)
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(path, f"the footer is damaged: {error}") from error
    if version > SCHEMA_VERSION:
        raise VersionError(path, f"written with tables of version {version}")
    wrong = mismatch(found.schema.to_arrow_schema(), TABLES[table])
    if wrong:
        raise FormatError(path, wrong)
    return Footer(path, table, found.num_rows, held, replaces)


def _held(value: Mapping[str, Any]) -> Held:
    first, last = value.get("ids", (0, 0))
    return Held(
        attempt=int(value.get("attempt", 0)),
        rank=int(value["rank"]),
        stem=str(value["stem"]),
        slots=[(int(first), int(end)) for first, end in value["slots"]],
        defined=int(value.get("defined", 0)),
        ids=(int(first), int(last)),
        spans=int(value.get("spans", 0)),
        collectives=int(value.get("collectives", 0)),
        world_size=value.get("world_size"),
        final=value.get("final"),
    )
