"""Attributes of many records at once: continuations become one column of maps.

Values of one schema and position have one type, so each is formatted as one column; the entries
are then put into the order of their rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.dataset.schema import SPANS
from tracekit.journal.definitions import Definitions, clean, json_text
from tracekit.journal.records import Bools, Ints, Records
from tracekit.model.record import RecordType

__all__ = ["Attributes", "attributes", "texts"]

_MAP = SPANS.field("attributes").type
_DETAIL = (1 << 24) - 1
_NULL = "null"
_BOOLS = pa.array(["false", "true"])
_WHOLE = r"^-?[0-9]+$"


@dataclass(slots=True)
class Attributes:
    """The column of maps, and the two attributes of spans that are columns of their own."""

    column: pa.Array
    launch_ns: Ints
    launched: Bools
    devices: list[str] = field(default_factory=list)
    device: Ints | None = None
    """Per row the place in ``devices``, -1 for none."""


@dataclass(slots=True)
class _Builder:
    """Entries of the maps, gathered schema by schema."""

    rows: int
    reserved: bool
    keys: dict[str, int] = field(default_factory=dict)
    entries: list[tuple[Ints, Ints, int, Any]] = field(default_factory=list)
    """Continuations, place of the entry in each one's, key, values."""
    launch: Ints = field(init=False)
    launched: Bools = field(init=False)
    device: Ints | None = None
    devices: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.launch = np.zeros(self.rows, np.int64)
        self.launched = np.zeros(self.rows, bool)

    def key(self, text: str) -> int:
        return self.keys.setdefault(text, len(self.keys))

    def set_device(self, targets: Ints, names: list[str]) -> None:
        if self.device is None:
            self.device = np.full(self.rows, -1)
        self.device[targets] = [self.devices.setdefault(name, len(self.devices)) for name in names]


def attributes(
    records: Records, place: Ints, count: int, definitions: Definitions, *, reserved: bool
) -> Attributes:
    """Gather the attributes of the records that ``place`` gives a row (-1: none) of ``count``.

    With ``reserved`` the attributes ``launch_ns`` and ``device`` are taken out of the maps.
    """
    build = _Builder(count, reserved)
    rows, types, owners = records.rows, records.types, records.owners
    found = np.flatnonzero((types == RecordType.VALUES) | (types == RecordType.JSON))
    found = found[owners[found] >= 0]
    targets = place[owners[found]]
    found, targets = found[targets >= 0], targets[targets >= 0]
    if np.any(np.diff(targets) < 0):
        order = np.argsort(targets, kind="stable")
        found, targets = found[order], targets[order]
    sizes = np.zeros(len(found), np.int64)
    details = rows[found, 0] & _DETAIL
    is_json = types[found] == RecordType.JSON
    _take_values(build, rows, found, targets, details, np.flatnonzero(~is_json), sizes, definitions)
    _take_json(build, rows, found, targets, details, np.flatnonzero(is_json), sizes)
    column = _maps(build, targets, sizes)
    return Attributes(column, build.launch, build.launched, list(build.devices), build.device)


def _take_values(
    build: _Builder,
    rows: Ints,
    found: Ints,
    targets: Ints,
    details: Ints,
    members: Ints,
    sizes: Ints,
    definitions: Definitions,
) -> None:
    """Format the values of each schema, one position at a time."""
    members = members[np.argsort(details[members], kind="stable")]
    schemas = details[members]
    borders = np.flatnonzero(np.diff(schemas)) + 1
    strings: list[str] | None = None
    for group in np.split(members, borders) if len(members) else []:
        schema = definitions.schemas.get(int(details[group[0]]))
        if schema is None:
            continue
        last = {key: position for position, key in enumerate(schema.keys)}
        entry = 0
        for position, (key, letter) in enumerate(zip(schema.keys, schema.letters, strict=True)):
            if last[key] != position:
                continue
            words = rows[found[group], 1 + position]
            if build.reserved and key == "launch_ns" and letter == "i":
                build.launch[targets[group]] = words
                build.launched[targets[group]] = True
                continue
            if build.reserved and key == "device" and letter == "s":
                names = {id_: _plain(definitions, id_) for id_ in np.unique(words).tolist()}
                build.set_device(targets[group], [names[id_] for id_ in words.tolist()])
                continue
            if letter == "s" and strings is None:
                known = definitions.strings
                strings = [known.get(id_, '"~other"') for id_ in range(max(known, default=0) + 1)]
            values = _formatted(words, letter, strings)
            build.entries.append((group, np.full(len(group), entry), build.key(key), values))
            entry += 1
        sizes[group] = entry


def _plain(definitions: Definitions, id_: int) -> str:
    return clean(str(json.loads(definitions.strings.get(id_, '"~other"'))))


def _formatted(words: Ints, letter: str, strings: list[str] | None) -> pa.Array:
    """Words of one type as JSON scalars."""
    if letter == "i":
        return pa.array(words).cast(pa.string())
    if letter == "b":
        return _BOOLS.take(pa.array(words != 0).cast(pa.int8()))
    if letter == "s" and strings is not None:
        inside = np.where((words < 0) | (words >= len(strings)), 0, words)
        used, places = np.unique(inside, return_inverse=True)
        return pa.array([strings[id_] for id_ in used.tolist()]).take(pa.array(places.ravel()))
    if letter == "f":
        return _floats(np.ascontiguousarray(words).view(np.float64))
    return pa.array([_NULL]).take(pa.array(np.zeros(len(words), np.int8)))


def _floats(values: np.ndarray[Any, Any]) -> pa.Array:
    """Floats as JSON that stays a float when it is read (5.0, not 5); no NaN, no Infinity."""
    texts = pa.array(values).cast(pa.string())
    odd = ~np.isfinite(values)
    whole = np.zeros(len(values), bool)
    round_ = np.flatnonzero(values == np.trunc(values))
    if len(round_):
        plain = pc.match_substring_regex(texts.take(pa.array(round_)), _WHOLE)
        whole[round_] = plain.to_numpy(zero_copy_only=False)
    if whole.any():
        longer = pc.binary_join_element_wise(texts, ".0", "")
        texts = pc.if_else(pa.array(whole), longer, texts)
    if odd.any():
        quoted = pc.binary_join_element_wise('"', texts, '"', "")
        texts = pc.if_else(pa.array(odd), quoted, texts)
    return texts


def _take_json(
    build: _Builder,
    rows: Ints,
    found: Ints,
    targets: Ints,
    details: Ints,
    members: Ints,
    sizes: Ints,
) -> None:
    """Put the pieces of each JSON object together and take its items."""
    if not len(members):
        return
    known: dict[bytes, list[tuple[str, Any, str]]] = {}
    columns: dict[int, tuple[list[int], list[int], list[str]]] = {}
    members = members[np.argsort(targets[members], kind="stable")]
    borders = np.flatnonzero(np.diff(targets[members])) + 1
    for group in np.split(members, borders):
        data = _joined(rows, found[group], details[group])
        items = known.get(data)
        if items is None:
            items = known[data] = _items(data)
        first, entry = int(group[0]), 0
        for key, value, text in items:
            if build.reserved and key == "launch_ns" and type(value) is int:
                build.launch[targets[first]] = value
                build.launched[targets[first]] = True
            elif build.reserved and key == "device" and isinstance(value, str):
                build.set_device(targets[first : first + 1], [clean(value)])
            else:
                of, at, values = columns.setdefault(build.key(key), ([], [], []))
                of.append(first)
                at.append(entry)
                values.append(text)
                entry += 1
        sizes[first] = entry
    for number, (of, at, values) in columns.items():
        build.entries.append((np.array(of), np.array(at), number, pa.array(values, pa.string())))


def _joined(rows: Ints, places: Ints, details: Ints) -> bytes:
    """The bytes of several continuations in a row."""
    return b"".join(
        rows[place, 1:7].tobytes()[:size]
        for place, size in zip(places.tolist(), details.tolist(), strict=True)
    )


def _items(data: bytes) -> list[tuple[str, Any, str]]:
    """Key, value and the value's JSON of an object; nothing when it is damaged."""
    try:
        value = json.loads(data)
    except ValueError:
        return []
    if not isinstance(value, dict):
        return []
    return [(clean(key), item, json_text(item)) for key, item in value.items()]


def _maps(build: _Builder, targets: Ints, sizes: Ints) -> pa.Array:
    """The entries in the order of their rows, as maps; a row without any is null."""
    total = int(sizes.sum())
    if not total:
        return pa.nulls(build.rows, _MAP)
    starts = np.cumsum(sizes) - sizes
    keys = np.empty(total, np.int32)
    source = np.empty(total, np.int32)
    done = 0
    for members, entry, key, values in build.entries:
        slots = starts[members] + entry
        keys[slots] = key
        source[slots] = np.arange(done, done + len(values))
        done += len(values)
    items = pa.concat_arrays([entry[3] for entry in build.entries]).take(pa.array(source))
    names = pa.array(list(build.keys), pa.string()).take(pa.array(keys))
    per_row = np.bincount(targets, weights=sizes, minlength=build.rows).astype(np.int64)
    ends = np.zeros(build.rows + 1, np.int32)
    np.cumsum(per_row, out=ends[1:])
    empty = np.append(per_row == 0, False)
    return pa.MapArray.from_arrays(pa.array(ends, mask=empty), names, items)


def texts(records: Records, place: Ints, count: int) -> list[str | None]:
    """The texts of events by row."""
    rows, types, owners = records.rows, records.types, records.owners
    found = np.flatnonzero(types == RecordType.TEXT)
    found = found[owners[found] >= 0]
    result: list[str | None] = [None] * count
    pieces: dict[int, list[int]] = {}
    for number, target in zip(found.tolist(), place[owners[found]].tolist(), strict=True):
        if target >= 0:
            pieces.setdefault(target, []).append(number)
    for target, numbers in pieces.items():
        places = np.array(numbers)
        data = _joined(rows, places, rows[places, 0] & _DETAIL)
        result[target] = data.decode("utf-8", "replace")
    return result
