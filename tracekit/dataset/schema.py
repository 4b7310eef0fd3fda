"""The tables of a run: their columns and types, the contract with everybody who reads them.

Only types that Spark reads: no unsigned integers, no TIMESTAMP(NANOS), no float16. Columns are
only ever added, and added ones are nullable.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["EVENTS", "FACTS", "SCHEMA_VERSION", "SPANS", "TABLES", "cast", "mismatch"]

SCHEMA_VERSION = 1
"""Goes up when a column changes its meaning, not when one is added."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_ATTRIBUTES = pa.map_(pa.string(), pa.string())

SPANS = pa.schema(
    [
        pa.field("run_id", _TEXT, nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("step", pa.int64()),
        pa.field("micro_step", pa.int32()),
        pa.field("kind", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("lane", _TEXT),
        pa.field("clock", _TEXT, nullable=False),  # host | device
        pa.field("span_id", pa.int64(), nullable=False),  # local sequence of the rank
        pa.field("parent_id", pa.int64()),
        pa.field("start_ns", pa.int64(), nullable=False),  # Unix time
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("launch_ns", pa.int64()),
        pa.field("is_open", pa.bool_(), nullable=False),
        pa.field("status", _TEXT),  # ok | error; null while open
        pa.field("device", _TEXT),
        pa.field("collective_op", _TEXT),
        pa.field("collective_group", _TEXT),
        pa.field("collective_seq", pa.int64()),
        pa.field("collective_bytes", pa.int64()),
        pa.field("collective_dtype", _TEXT),
        pa.field("group_size", pa.int32()),
        pa.field("peer_rank", pa.int32()),  # other side of a pair; root of a rooted operation
        pa.field("attributes", _ATTRIBUTES),  # values are JSON
    ]
)

EVENTS = pa.schema(
    [
        pa.field("run_id", _TEXT, nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("step", pa.int64()),
        pa.field("name", _TEXT, nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("source", _TEXT),
        pa.field("attributes", _ATTRIBUTES),
    ]
)

FACTS = pa.schema(
    [
        pa.field("run_id", _TEXT, nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("rank", pa.int32()),
        pa.field("host", _TEXT),
        pa.field("name", _TEXT, nullable=False),
        pa.field("value", pa.string(), nullable=False),  # JSON
        pa.field("time_ns", pa.int64()),
        pa.field("source", _TEXT),  # file:line
    ]
)

TABLES: dict[str, pa.Schema] = {"spans": SPANS, "events": EVENTS, "facts": FACTS}


def mismatch(found: pa.Schema, wanted: pa.Schema) -> str | None:
    """Why rows of one schema cannot be read as another; None when they can."""
    for field in wanted:
        place = found.get_field_index(field.name)
        if place < 0:
            if not field.nullable:
                return f"the column {field.name} is missing"
            continue
        type_ = _plain(found.field(place).type)
        if not (type_ == _plain(field.type) or pa.types.is_null(type_) or _widens(type_, field)):
            return f"the column {field.name} is {type_}, not {_plain(field.type)}"
    return None


def cast(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Rows with exactly the wanted columns and types; missing ones become null."""
    columns = []
    for field in wanted:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        column = rows.column(place)
        if column.type != field.type:
            if pa.types.is_dictionary(field.type):
                column = column.cast(pa.string()).dictionary_encode()
            else:
                column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=wanted)


def _plain(type_: pa.DataType) -> pa.DataType:
    """A type without its encoding."""
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_map(type_):
        return pa.map_(_plain(type_.key_type), _plain(type_.item_type))
    return pa.string() if pa.types.is_large_string(type_) else type_


def _widens(type_: pa.DataType, field: pa.Field) -> bool:
    """Whether integers of a narrower type can be read as the wanted ones."""
    if not (pa.types.is_signed_integer(type_) and pa.types.is_signed_integer(field.type)):
        return False
    return bool(type_.bit_width <= field.type.bit_width)
