"""Small builders of Arrow columns from arrays of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.journal.records import Bools, Ints

__all__ = ["OTHER", "Nulls", "by_id", "choice", "constant", "integers"]

OTHER = "~other"
_INDEX = pa.int32()


class Nulls:
    """Which rows are null, packed once for all columns that share it."""

    __slots__ = ("all", "bits", "count")

    def __init__(self, missing: Bools) -> None:
        self.count = int(np.count_nonzero(missing))
        self.all = self.count == len(missing)
        self.bits = pa.py_buffer(np.packbits(~missing, bitorder="little")) if self.count else None


NONE = Nulls(np.zeros(1, bool))


def integers(values: np.ndarray[Any, Any], nulls: Nulls = NONE, type_: Any = None) -> pa.Array:
    """Integers, without a copy where their width is right."""
    type_ = type_ or pa.int64()
    if nulls.all:
        return pa.nulls(len(values), type_)
    data = np.ascontiguousarray(values, type_.to_pandas_dtype())
    return pa.Array.from_buffers(
        type_, len(data), [nulls.bits, pa.py_buffer(data)], null_count=nulls.count
    )


def choice(
    places: np.ndarray[Any, Any], texts: Sequence[str], nulls: Nulls = NONE
) -> pa.DictionaryArray:
    """Texts by their place in a list of different ones."""
    dictionary = pa.array(texts, pa.string())
    return pa.DictionaryArray.from_arrays(integers(places, nulls, _INDEX), dictionary, safe=False)


def constant(text: str, rows: int) -> pa.DictionaryArray:
    """One text in every row."""
    return choice(np.zeros(rows, np.int32), [text])


def by_id(ids: Ints, texts: Mapping[int, str | None], nulls: Nulls = NONE) -> pa.DictionaryArray:
    """Texts by id, with a dictionary of those in use alone; an unknown id is ``~other``.

    Where a known id has no text (None), the row is null.
    """
    last = max(texts, default=0) + 1
    if len(ids) and (ids.max() > last or ids.min() < 0):
        ids = np.where((ids > last) | (ids < 0), last, ids)
    counts = np.bincount(ids, minlength=1)
    places = np.zeros(len(counts), np.int32)
    kept: dict[str, int] = {}
    absent = False
    for id_ in np.flatnonzero(counts).tolist():
        text = texts.get(id_, OTHER)
        absent |= text is None
        places[id_] = -1 if text is None else kept.setdefault(text, len(kept))
    found = places[ids]
    if absent:
        nulls = Nulls(found < 0)  # the ids of rows that are null anyway have to be such, too
    return choice(found, list(kept), nulls)
