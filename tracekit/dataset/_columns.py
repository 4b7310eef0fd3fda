"""Small builders of Arrow columns from arrays of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.journal.records import Bools, Ints

__all__ = ["OTHER", "Ids", "Nulls", "by_id", "choice", "constant", "integers"]

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
    data = np.ascontiguousarray(values, np.int32 if type_ == pa.int32() else np.int64)
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


class Ids:
    """Ids of rows, counted once for all columns of texts that they stand for."""

    __slots__ = ("_ids", "_used")

    def __init__(self, ids: Ints, known: Mapping[int, Any]) -> None:
        last = max(known, default=0) + 1
        if len(ids) and (ids.max() > last or ids.min() < 0):
            ids = np.where((ids > last) | (ids < 0), last, ids)
        self._ids = ids
        self._used: list[int] = np.flatnonzero(np.bincount(ids, minlength=1)).tolist()

    def texts(self, of: Callable[[int], str | None]) -> pa.DictionaryArray:
        """The texts, with a dictionary of those in use alone; the row is null for None."""
        places = np.zeros((self._used[-1] if self._used else 0) + 1, np.int32)
        kept: dict[str, int] = {}
        absent = False
        for id_ in self._used:
            text = of(id_)
            absent |= text is None
            places[id_] = -1 if text is None else kept.setdefault(text, len(kept))
        if len(kept) <= 1 and not absent:
            return constant(next(iter(kept), OTHER), len(self._ids))
        found = places[self._ids]
        return choice(found, list(kept), Nulls(found < 0) if absent else NONE)


def by_id(ids: Ints, known: Mapping[int, str]) -> pa.DictionaryArray:
    """Texts by id; an unknown one is ``~other``."""
    return Ids(ids, known).texts(lambda id_: known.get(id_, OTHER))
