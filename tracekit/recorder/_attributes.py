"""Attributes of a span or event, written as continuation records before their owner.

Integers, floats, booleans, None and short texts take one word each under an interned schema (the
keys and the types); everything else becomes one JSON object. All keep their JSON type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from operator import itemgetter
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
    from tracekit.recorder._thread import Slots

__all__ = [
    "MAX_TEXT_BYTES",
    "Shape",
    "as_text",
    "dump_json",
    "encode_text",
    "write_bytes",
    "write_continuations",
    "write_values",
]

MAX_TEXT_BYTES = 4096
"""Longer JSON or text is cut; a chunk must hold a record with all its continuations."""
_LETTER = {int: "i", float: "f", bool: "b", str: "s", type(None): "n"}
_VALUES = int(RecordType.VALUES)
_JSON = int(RecordType.JSON)
_WORD_MIN, _WORD_MAX = -(1 << 63), (1 << 63) - 1
_MOST_SHAPES = 16384
_DEEPEST = 16
"""How deep lists and mappings may lie in each other; what is deeper becomes text."""

Shape = tuple[
    Callable[[Mapping[str, Any]], tuple[Any, Any, Any, Any, Any, Any]],
    int, tuple[type, ...], bool, bool, bool, bool, bool, bool, Callable[..., None], int,
]  # fmt: skip
"""How attributes of some keys and types are written: how to get six values (the spare ones repeat
the first), how many there are, their types, which are texts, how to pack, the schema's id."""
_shapes: dict[tuple[Any, ...], Shape | None] = {}
_texts: dict[Any, int] = {None: 0}
"""The words of texts and of None."""


def write_values(
    slots: Slots, id_: int, attributes: Mapping[str, Any], shape: Shape | None
) -> Shape | None:
    """Write up to six simple attributes as one continuation; None when they need another form.

    ``slots`` are those that the record itself will take its place from, so that both get into one
    chunk. ``shape`` is the one that fitted last time, and the one that fits now is returned: a
    span of one name nearly always has the same. Raises ``StopIteration`` at the end of the chunk.
    """
    if shape is None:
        shape = _shape(attributes)
        if shape is None:
            return None
    get, size, types, text_a, text_b, text_c, text_d, text_e, text_f, pack, schema = shape
    try:
        a, b, c, d, e, f = get(attributes)
        # Spelled out: a loop over six values takes three times as long.
        if len(attributes) != size or types != (
            type(a), type(b), type(c), type(d), type(e), type(f),
        ):  # fmt: skip
            return write_values(slots, id_, attributes, None)
        if text_a:
            a = _texts[a]
        if text_b:
            b = _texts[b]
        if text_c:
            c = _texts[c]
        if text_d:
            d = _texts[d]
        if text_e:
            e = _texts[e]
        if text_f:
            f = _texts[f]
    except KeyError:  # other keys, or a text that is new
        return write_values(slots, id_, attributes, None)
    words, offset, mark, commit = next(slots)
    try:
        pack(words, offset, id_ << 24 | schema, a, b, c, d, e, f)
    except Exception:  # an integer wider than a word
        pack_raw(words, offset, id_ << 24, b"")
        words[mark] = commit | _JSON
        return None
    words[mark] = commit | _VALUES
    return shape


def _shape(attributes: Mapping[str, Any]) -> Shape | None:
    """The shape of attributes, their texts made known; None when a value needs JSON."""
    keys = (*attributes,)
    values = (*attributes.values(),)
    for value in values:
        if type(value) is str and value not in _texts:
            word = interner.string(value)
            if word < 0:
                return None
            _texts[value] = word
    key = (*keys, *map(type, values))
    try:
        return _shapes[key]
    except KeyError:
        pass
    shape = _new_shape(keys, tuple(map(type, values)))
    if len(_shapes) < _MOST_SHAPES:
        _shapes[key] = shape
    return shape


def _new_shape(keys: tuple[str, ...], types: tuple[type, ...]) -> Shape | None:
    letters = "".join(_LETTER.get(type_, "?") for type_ in types)
    if not 0 < len(keys) <= PAYLOAD_WORDS or "?" in letters:
        return None
    schema = interner.schema(keys, letters)
    if not schema:
        return None
    spare = PAYLOAD_WORDS - len(keys)
    types += types[:1] * spare
    texts = (type_ is str or type_ is type(None) for type_ in types)
    codes = "".join("d" if type_ is float else "q" for type_ in types)
    get: Any = itemgetter(*keys, *keys[:1] * spare)
    a, b, c, d, e, f = texts
    return get, len(keys), types, a, b, c, d, e, f, Struct("q" + codes).pack_into, schema


def write_continuations(slots: Slots, id_: int, attributes: Mapping[str, Any]) -> None:
    """Write attributes of any number and type; raises ``StopIteration`` at the end of the chunk."""
    if len(attributes) <= PAYLOAD_WORDS and write_values(slots, id_, attributes, None):
        return
    rest: dict[str, Any] = {}
    batch: dict[str, Any] = {}
    for key, value in attributes.items():
        if not _fits(value):
            rest[key] = value
            continue
        batch[key] = value
        if len(batch) == PAYLOAD_WORDS:
            if not write_values(slots, id_, batch, None):
                rest.update(batch)
            batch = {}
    if batch and not write_values(slots, id_, batch, None):
        rest.update(batch)
    if rest:
        write_bytes(slots, id_, RecordType.JSON, _json(rest))


def _fits(value: Any) -> bool:
    """Whether a value takes one word."""
    if type(value) is str:
        return value in _texts or interner.string(value) >= 0
    if type(value) is int:
        return _WORD_MIN <= value <= _WORD_MAX
    return type(value) in _LETTER


def write_bytes(slots: Slots, id_: int, type_: int, data: bytes) -> None:
    """Write bytes as continuations; raises ``StopIteration`` at the end of the chunk."""
    for start in range(0, len(data), PAYLOAD_BYTES):
        part = data[start : start + PAYLOAD_BYTES]
        words, offset, mark, commit = next(slots)
        pack_raw(words, offset, id_ << 24 | len(part), part)
        words[mark] = commit | type_


def encode_text(text: str) -> bytes:
    """UTF-8, cut at a character's border to what a chunk can hold."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT_BYTES:
        return data
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _json(values: Mapping[str, Any]) -> bytes:
    """One JSON object; keys and values too long for a chunk are cut, and are texts then."""
    data = dump_json(values)
    most = MAX_TEXT_BYTES
    while len(data) > MAX_TEXT_BYTES:
        most //= 2
        data = dump_json({key[:most]: _cut(value, most) for key, value in values.items()})
    return data


def _cut(value: Any, most: int) -> Any:
    text = value if isinstance(value, str) else dump_json(value).decode()
    return value if len(text) <= most else text[:most]


def dump_json(value: Any) -> bytes:
    """A value as JSON that every reader takes; what has no JSON form becomes its text."""
    plain = _plain(value)
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(plain, allow_nan=False).encode()


def _plain(value: Any, depth: int = 0) -> Any:
    """What JSON can hold of a value: numbers of any library, texts for NaN and for objects."""
    if value is None or isinstance(value, (str, bool)):
        return value
    try:
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            number = float(value)
            return number if math.isfinite(number) else str(number)
        if depth < _DEEPEST and isinstance(value, Mapping):
            return {as_text(key): _plain(item, depth + 1) for key, item in value.items()}
        if depth < _DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(item, depth + 1) for item in value]
    except Exception:
        return f"<{type(value).__name__}>"
    return as_text(value)


def as_text(value: Any) -> str:
    """A value as text, whatever its ``__str__`` does."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
