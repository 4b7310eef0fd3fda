"""Columns as Python values that any writer can take: no broken text, no NaN, no infinity."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

__all__ = ["Value", "values"]

Value = str | int | float | bool | None


def values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column; maps become dictionaries, and texts are cleaned of other bytes."""
    array = _flat(column)
    if pa.types.is_dictionary(array.type):
        known = _texts(array.dictionary)
        return [None if place is None else known[place] for place in array.indices.to_pylist()]
    if pa.types.is_map(array.type):
        return _attributes(array)
    return _texts(array) if pa.types.is_string(array.type) else list(array.to_pylist())


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece that begins where its buffers do."""
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # so older versions return it
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return column.take(pa.array(range(len(column)), pa.int64())) if column.offset else column


def _texts(array: pa.Array) -> list[str | None]:
    return [
        None if data is None else data.decode("utf-8", "replace")
        for data in array.cast(pa.binary()).to_pylist()
    ]


def _attributes(maps: pa.MapArray) -> list[dict[str, Value] | None]:
    """Maps of JSON scalars as dictionaries of values."""
    keys = _texts(maps.keys)
    items = [_scalar(item) for item in maps.items.cast(pa.binary()).to_pylist()]
    ends = maps.offsets.to_pylist()
    return [
        None if missing else {str(keys[place]): items[place] for place in range(first, end)}
        for missing, first, end in zip(maps.is_null().to_pylist(), ends[:-1], ends[1:], strict=True)
    ]


@lru_cache(maxsize=1 << 14)
def _scalar(data: bytes | None) -> Value:
    """The value of a JSON scalar; the text itself where it is none."""
    if data is None:
        return None
    try:
        value: Any = orjson.loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")
    if isinstance(value, (dict, list)) or (isinstance(value, float) and not math.isfinite(value)):
        return data.decode("utf-8", "replace")
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
