"""Attributes of a span or event, written as continuation records before their owner.

Integers, floats, booleans, None and short texts take one word each under an interned schema (the
keys and the types); everything else becomes one JSON object. All keep their JSON type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any

from tracekit.model.record import (
    PAYLOAD_BYTES,
    PAYLOAD_WORDS,
    RecordType,
    pack_raw,
)
from tracekit.recorder._intern import interner

if TYPE_CHECKING:
    from tracekit.recorder._thread import ThreadState

__all__ = ["MAX_TEXT_BYTES", "encode_text", "write_bytes", "write_continuations", "write_values"]

MAX_TEXT_BYTES = 4096
"""Longer JSON or text is cut; a chunk must hold a record with all its continuations."""
_LETTER = {int: "i", float: "f", bool: "b", str: "s", type(None): "n"}
_VALUES = int(RecordType.VALUES)

_Schema = tuple[int, Any, tuple[int, ...]]
"""Id, how to pack, and which values are texts or None."""
_strings = interner.strings
_schemas: dict[tuple[Any, ...], _Schema | None] = {}
_MOST_SCHEMAS = 16384


def _schema(key: tuple[Any, ...]) -> _Schema | None:
    """Learn the schema of keys and types; None when a value needs JSON."""
    size = len(key) // 2
    keys, types = key[:size], key[size:]
    letters = "".join(_LETTER.get(type_, "?") for type_ in types)
    schema: _Schema | None = None
    if size <= PAYLOAD_WORDS and "?" not in letters:
        id_ = interner.schema(keys, letters)
        if id_:
            texts = tuple(place for place, letter in enumerate(letters) if letter in "sn")
            codes = "".join("d" if letter == "f" else "q" for letter in letters)
            schema = (id_, Struct("q" + codes).pack_into, texts)
    if len(_schemas) < _MOST_SCHEMAS:
        _schemas[key] = schema
    return schema


def write_values(state: ThreadState, id_: int, attributes: Mapping[str, Any]) -> bool:
    """Write up to six simple attributes as one continuation; False when they need another form.

    Raises ``StopIteration`` at the end of the chunk.
    """
    values = [*attributes.values()]
    key = (*attributes, *map(type, values))
    try:
        schema = _schemas[key]
    except KeyError:
        schema = _schema(key)
    if schema is None:
        return False
    number, pack, texts = schema
    for place in texts:
        text = values[place]
        try:
            values[place] = _strings[text]
        except KeyError:
            values[place] = number_of = interner.string(text) if text is not None else 0
            if number_of < 0:
                return False
    offset, mark, commit = state.slot()
    try:
        pack(state.buffer, offset, id_ << 24 | number, *values)
    except Exception:  # an integer wider than a word
        return False
    state.words[mark] = commit | _VALUES
    return True


def write_continuations(state: ThreadState, id_: int, attributes: Mapping[str, Any]) -> None:
    """Write attributes of any number and type; raises ``StopIteration`` at the end of the chunk."""
    if len(attributes) <= PAYLOAD_WORDS and write_values(state, id_, attributes):
        return
    rest: dict[str, Any] = {}
    batch: dict[str, Any] = {}
    for key, value in attributes.items():
        if type(value) in _LETTER and not (
            (isinstance(value, str) and interner.string(value) < 0)
            or (type(value) is int and not -(1 << 63) <= value < 1 << 63)
        ):
            batch[key] = value
            if len(batch) == PAYLOAD_WORDS:
                if not write_values(state, id_, batch):
                    rest.update(batch)
                batch = {}
        else:
            rest[key] = value
    if batch and not write_values(state, id_, batch):
        rest.update(batch)
    if rest:
        write_bytes(state, id_, RecordType.JSON, _json(rest))


def write_bytes(state: ThreadState, id_: int, type_: int, data: bytes) -> None:
    """Write bytes as continuations; raises ``StopIteration`` at the end of the chunk."""
    for start in range(0, len(data), PAYLOAD_BYTES):
        part = data[start : start + PAYLOAD_BYTES]
        offset, mark, commit = state.slot()
        pack_raw(state.buffer, offset, id_ << 24 | len(part), part)
        state.words[mark] = commit | type_


def encode_text(text: str) -> bytes:
    """UTF-8, cut at a character's border to what a chunk can hold."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT_BYTES:
        return data
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _json(values: dict[str, Any]) -> bytes:
    """One JSON object; what has no JSON form becomes its text, what is too long is cut."""
    data = _dump(values)
    if len(data) <= MAX_TEXT_BYTES:
        return data
    kept: dict[str, Any] = {}
    for key, value in values.items():
        text = value if isinstance(value, str) else _dump(value).decode()
        kept[key[:64]] = text[: max(16, 2048 // len(values))]
        if len(_dump(kept)) > MAX_TEXT_BYTES:
            del kept[key[:64]]
            break
    return _dump(kept)


def _dump(value: Any) -> bytes:
    try:
        return json.dumps(_plain(value), allow_nan=False, default=_text).encode()
    except Exception:
        return json.dumps(_text(value)).encode() if not isinstance(value, dict) else b"{}"


def _plain(value: Any, depth: int = 0) -> Any:
    """Make a value JSON can hold: texts for keys and for NaN and Infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < 8 and isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if depth < 8 and isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value if isinstance(value, (str, int, bool, type(None))) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
