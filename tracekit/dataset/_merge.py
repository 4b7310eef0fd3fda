"""Merging the rows of many files in order, with no more in memory than overlaps.

Every row group says between which steps it lies. Row groups are read in the order of where they
begin; rows before the beginning of the next one are complete, are sorted and go out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset.schema import cast
from tracekit.journal.records import Ints

__all__ = ["Group", "groups_of", "merged", "most_at_once"]

OUT_ROWS = 128 << 10
_LEAST_ROWS = 512 << 10
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Group:
    """A row group of a file and the range of each column that rows are ordered by."""

    path: Path
    metadata: pq.FileMetaData
    number: int
    rows: int
    nulls: int
    """Rows without a step."""
    ranges: dict[str, tuple[int, int]]

    def read(self, schema: pa.Schema) -> pa.Table:
        """The rows, with the columns of the schema."""
        with pq.ParquetFile(self.path, metadata=self.metadata) as file:
            names = [name for name in schema.names if name in file.schema_arrow.names]
            return cast(file.read_row_group(self.number, names, use_threads=False), schema)


def groups_of(path: Path, columns: Sequence[str]) -> list[Group]:
    """The row groups of a file, with the ranges that its statistics give for the columns."""
    metadata = pq.read_metadata(path)
    places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        ranges, nulls = {}, group.num_rows
        for column in columns:
            statistics = None
            if column in places:
                statistics = group.column(places[column]).statistics
            if statistics is not None and statistics.has_min_max:
                ranges[column] = int(statistics.min), int(statistics.max)
            else:
                ranges[column] = _EARLIEST, _LATEST
            if column == "step" and statistics is not None and statistics.has_null_count:
                nulls = int(statistics.null_count)
        found.append(Group(path, metadata, number, group.num_rows, nulls, ranges))
    return found


def merged(groups: Iterable[Group], schema: pa.Schema, time: str) -> Iterator[pa.Table]:
    """All rows in the order of step, rank and time; those without a step at the end."""
    listed = list(groups)
    stepped = [group for group in listed if group.nulls < group.rows]
    yield from _in_order(stepped, schema, "step", time, lambda rows: rows["step"].is_valid())
    rest = [group for group in listed if group.nulls]
    for rank in sorted({rank for group in rest for rank in _ranks(group, schema)}):
        of_rank = [group for group in rest if _holds(group, rank)]
        yield from _in_order(of_rank, schema, time, time, _without_step(rank))


def _ranks(group: Group, schema: pa.Schema) -> Iterable[int]:
    """The ranks whose rows a group may hold."""
    first, last = group.ranges["rank"]
    if first == last:
        return (first,)
    rows = group.read(pa.schema([schema.field("rank")]))
    ranks: list[int] = pc.unique(rows["rank"]).to_pylist()
    return ranks


def _holds(group: Group, rank: int) -> bool:
    first, last = group.ranges["rank"]
    return first <= rank <= last


def _without_step(rank: int) -> Callable[[pa.Table], Any]:
    return lambda rows: pc.and_(pc.equal(rows["rank"], rank), rows["step"].is_null())


def most_at_once(groups: Iterable[Group]) -> int:
    """How many rows overlap in one step: what ``merged`` has to hold at least."""
    ends: list[tuple[int, int]] = []
    for group in groups:
        if group.nulls < group.rows:
            first, last = group.ranges["step"]
            ends += [(first, group.rows), (last + 1, -group.rows)]
    ends.sort(key=lambda end: (end[0], end[1]))
    return int(np.cumsum([rows for _, rows in ends]).max(initial=0)) if ends else 0


def _in_order(
    groups: Iterable[Group],
    schema: pa.Schema,
    key: str,
    time: str,
    chosen: Callable[[pa.Table], Any],
) -> Iterator[pa.Table]:
    """The chosen rows of groups in the order of the key (then rank and time)."""
    waiting = sorted(groups, key=lambda group: group.ranges[key][0])
    held: list[pa.Table] = []
    for place, group in enumerate(waiting):
        rows = group.read(schema)
        held.append(rows.filter(chosen(rows)))
        ahead = place + 1 < len(waiting)
        if ahead and sum(map(len, held)) < _LEAST_ROWS:
            continue
        complete = held
        if ahead:
            border = waiting[place + 1].ranges[key][0]
            before = [pc.less(rows[key], border) for rows in held]
            ready = sum(pc.sum(mask).as_py() or 0 for mask in before)
            if ready < _LEAST_ROWS // 2:
                continue
            pairs = list(zip(held, before, strict=True))
            complete = [rows.filter(mask) for rows, mask in pairs]
            held = [rows.filter(pc.invert(mask)) for rows, mask in pairs]
            held = [rows for rows in held if len(rows)]
        else:
            held = []
        yield from _sorted(complete, time)


def _sorted(tables: list[pa.Table], time: str) -> Iterator[pa.Table]:
    """Rows in the order of step, rank and time, in pieces of a row group."""
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    tables.clear()
    order = _order(rows, time)
    for first in range(0, len(order), OUT_ROWS):
        yield rows.take(pa.array(order[first : first + OUT_ROWS]))


def _order(rows: pa.Table, time: str) -> Ints:
    """The places of rows in order; by one packed key where step, rank and time fit into it."""
    keys = [_ints(rows[name]) for name in ("step", "rank", time)]
    if not len(rows):
        return np.zeros(0, np.int64)
    bits, packed = 0, np.zeros(len(rows), np.int64)
    for values in reversed(keys):
        low = values.min()
        bits_here = int(values.max() - low).bit_length()
        if bits + bits_here > 62:
            return np.lexsort(keys[::-1])
        packed |= (values - low) << bits
        bits += bits_here
    return np.argsort(packed)


def _ints(column: pa.ChunkedArray) -> Ints:
    column = column.cast(pa.int64())
    values: Ints = pc.fill_null(column, _LATEST >> 1).to_numpy()
    return values
