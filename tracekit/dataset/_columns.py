"""Small builders of Arrow columns from arrays of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.journal.records import Bools, Ints

__all__ = ["OTHER", "by_id", "choice", "constant", "nullable"]

OTHER = "~other"
_MOST_IDS = 1 << 20


def constant(text: str, rows: int) -> pa.Array:
    """One text in every row."""
    return choice(np.zeros(rows, np.int32), [text])


def choice(
    places: np.ndarray[Any, Any], texts: Sequence[str], missing: Bools | None = None
) -> pa.Array:
    """Texts by their place in a list of different ones."""
    indices = pa.array(places.astype(np.int32, copy=False), mask=missing)
    dictionary = pa.array(texts, pa.string())
    return pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)


def by_id(ids: Ints, texts: Mapping[int, str | None], missing: Bools | None = None) -> pa.Array:
    """Texts by id, with a dictionary of those in use alone; an unknown id is ``~other``.

    Where a known id has no text (None), the row is null.
    """
    ids = np.where((ids < 0) | (ids >= _MOST_IDS), 0, ids)
    used = np.flatnonzero(np.bincount(ids)) if len(ids) else ids
    place_of: dict[str, int] = {}
    places = np.zeros(int(used[-1]) + 1 if len(used) else 1, np.int32)
    for id_ in used.tolist():
        text = texts.get(id_, OTHER)
        places[id_] = -1 if text is None else place_of.setdefault(text, len(place_of))
    found = places[ids]
    if found.min(initial=0) < 0:
        none = found < 0
        missing = none if missing is None else missing | none
    return choice(found, list(place_of), missing)


def nullable(values: Ints, missing: Bools, type_: pa.DataType | None = None) -> pa.Array:
    """Integers with nulls, cheap when there are none or nothing else."""
    type_ = type_ or pa.int64()
    if missing.all():
        return pa.nulls(len(values), type_)
    array = pa.array(values, mask=missing if missing.any() else None)
    return array if type_ == pa.int64() else array.cast(type_)
