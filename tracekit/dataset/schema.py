"""The tables of a run: their columns and types, the contract with everybody who reads them.

Only types that Spark reads: no unsigned integers, no TIMESTAMP(NANOS), no float16. Columns are
only ever added, and added ones are nullable.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["EVENTS", "FACTS", "SPANS", "TABLES"]

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
        pa.field("status", _TEXT),  # ok | error
        pa.field("device", _TEXT),
        pa.field("collective_op", _TEXT),
        pa.field("collective_group", _TEXT),
        pa.field("collective_seq", pa.int64()),
        pa.field("collective_bytes", pa.int64()),
        pa.field("collective_dtype", _TEXT),
        pa.field("group_size", pa.int32()),
        pa.field("peer_rank", pa.int32()),  # other side of a pair; root of a rooted operation
        pa.field("attributes", _ATTRIBUTES),  # values are JSON scalars
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
