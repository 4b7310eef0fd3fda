"""Records of a journal become rows of ``spans`` and ``events``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.dataset._attributes import Attributes, attributes, texts
from tracekit.dataset._columns import by_id, choice, constant, nullable
from tracekit.dataset.schema import EVENTS, SPANS
from tracekit.journal.definitions import Definitions
from tracekit.journal.records import Bools, Ints, Records
from tracekit.model import KINDS
from tracekit.model.record import (
    DISTANCE_BITS,
    LANE_SHIFT,
    NAME_MASK,
    NAME_SHIFT,
    SEQ_BITS,
    STEP_BITS,
    Flag,
    RecordType,
)

__all__ = ["Origin", "SpanWords", "decode", "span_table"]

_KINDS = dict(enumerate(KINDS))
_SEQ_MASK = (1 << SEQ_BITS) - 1
_DISTANCE_MASK = (1 << DISTANCE_BITS) - 1
_MICRO_MASK = (1 << STEP_BITS) - 1


@dataclass(frozen=True, slots=True)
class Origin:
    """What all rows of a journal have in common; ``offset_ns`` makes its times Unix times."""

    run_id: str
    attempt: int
    rank: int
    offset_ns: int


@dataclass(frozen=True, slots=True)
class SpanWords:
    """The words of many spans, each word an array; ``collective`` says which are collectives."""

    start: Ints
    duration: Ints
    what: Ints
    lane: Ints
    step: Ints
    id: Ints
    parent: Ints
    collective: Bools
    site: Ints
    size: Ints


def decode(
    records: Sequence[Records], definitions: Definitions, origin: Origin
) -> tuple[pa.Table, pa.Table]:
    """The spans and the events among records."""
    if not records:
        return SPANS.empty_table(), EVENTS.empty_table()
    rows = np.concatenate([batch.rows for batch in records])
    types = np.concatenate([batch.types for batch in records])
    lanes = np.concatenate([batch.lanes for batch in records])
    firsts = np.cumsum([0, *(len(batch) for batch in records[:-1])])
    owners = np.concatenate(
        [
            np.where(batch.owners < 0, -1, batch.owners + first)
            for batch, first in zip(records, firsts.tolist(), strict=True)
        ]
    )
    spans = np.flatnonzero((types == RecordType.SPAN) | (types == RecordType.COLLECTIVE))
    words = _span_words(rows[spans], types[spans], lanes[spans])
    taken = attributes(
        rows,
        types,
        owners,
        _places(spans, len(rows)),
        len(spans),
        definitions,
        reserved=True,
    )
    events = np.flatnonzero(types == RecordType.EVENT)
    return (
        span_table(words, definitions, origin, taken),
        _events(rows, types, owners, events, definitions, origin),
    )


def _places(members: Ints, count: int) -> Ints:
    """For each record its row in a table of ``members``, -1 when it is none."""
    places = np.full(count, -1)
    places[members] = np.arange(len(members))
    return places


def _span_words(rows: Ints, types: Ints, lanes: Ints) -> SpanWords:
    """Split records into words and undo what their two forms do differently."""
    start, duration, what, step, ids, parent, size, _ = np.ascontiguousarray(rows.T)
    collective = types == RecordType.COLLECTIVE
    site = np.zeros(len(rows), np.int64)
    if collective.any():
        places = np.flatnonzero(collective)
        packed = ids[places]
        ids[places] = packed >> DISTANCE_BITS
        distance = packed & _DISTANCE_MASK
        site[places] = parent[places]
        parent[places] = np.where(distance > 0, ids[places] - distance, 0)
    lane = what >> LANE_SHIFT
    lane = np.where(lane == 0, lanes, lane)
    return SpanWords(start, duration, what, lane, step, ids, parent, collective, site, size)


def span_table(
    words: SpanWords,
    definitions: Definitions,
    origin: Origin,
    taken: Attributes | None = None,
    *,
    is_open: bool = False,
) -> pa.Table:
    """Rows of ``spans``; times become Unix times."""
    count = len(words.start)
    what = words.what
    step = words.step >> STEP_BITS
    micro = words.step & _MICRO_MASK
    columns: dict[str, pa.Array] = {
        "run_id": constant(origin.run_id, count),
        "attempt": pa.array(np.full(count, origin.attempt, np.int32)),
        "rank": pa.array(np.full(count, origin.rank, np.int32)),
        "step": nullable(step - 1, step == 0),
        "micro_step": nullable(micro - 1, micro == 0, pa.int32()),
        "kind": by_id(np.where((what & 0xFF) < len(KINDS), what & 0xFF, 0), _KINDS),
        "name": by_id(what >> NAME_SHIFT & NAME_MASK, definitions.names),
        "lane": by_id(words.lane, definitions.lanes),
        "clock": choice((what & int(Flag.DEVICE)) != 0, ["host", "device"]),
        "span_id": pa.array(words.id),
        "parent_id": nullable(words.parent, words.parent == 0),
        "start_ns": pa.array(words.start + origin.offset_ns),
        "duration_ns": pa.array(words.duration),
        "launch_ns": pa.nulls(count, pa.int64()),
        "is_open": pa.array(np.full(count, is_open)),
        "status": choice((what & int(Flag.ERROR)) != 0, ["ok", "error"]),
        "device": pa.nulls(count, SPANS.field("device").type),
        "attributes": pa.nulls(count, SPANS.field("attributes").type),
        **_collectives(words, definitions),
    }
    if is_open:
        columns["status"] = pa.nulls(count, SPANS.field("status").type)
    if taken is not None:
        columns["attributes"] = taken.column
        columns["launch_ns"] = nullable(taken.launch_ns + origin.offset_ns, ~taken.has_launch)
        if taken.device is not None:
            columns["device"] = choice(taken.device, taken.devices, taken.device < 0)
    return pa.Table.from_arrays([columns[name] for name in SPANS.names], schema=SPANS)


def _collectives(words: SpanWords, definitions: Definitions) -> dict[str, pa.Array]:
    """The columns of collectives, null in all other rows."""
    count = len(words.start)
    names = [name for name in SPANS.names if name.startswith("collective_")]
    names += ["group_size", "peer_rank"]
    if not words.collective.any():
        return {name: pa.nulls(count, SPANS.field(name).type) for name in names}
    missing = ~words.collective
    ids = words.site >> SEQ_BITS
    known = definitions.collectives
    last = max(known, default=0) + 1
    sizes, peers = np.zeros(last, np.int64), np.full(last, -1)
    for id_, collective in known.items():
        sizes[id_] = collective.group_size
        peers[id_] = -1 if collective.peer is None else collective.peer
    inside = np.where((ids > 0) & (ids < last), ids, 0)
    peer, size = peers[inside], sizes[inside]
    return {
        "collective_op": by_id(ids, {i: c.op for i, c in known.items()}, missing),
        "collective_group": by_id(ids, {i: c.group for i, c in known.items()}, missing),
        "collective_seq": nullable(words.site & _SEQ_MASK, missing),
        "collective_bytes": nullable(words.size, missing),
        "collective_dtype": by_id(ids, {i: c.dtype for i, c in known.items()}, missing),
        "group_size": nullable(size, missing | (size == 0), pa.int32()),
        "peer_rank": nullable(peer, missing | (peer < 0), pa.int32()),
    }


def _events(
    rows: Ints,
    types: Ints,
    owners: Ints,
    members: Ints,
    definitions: Definitions,
    origin: Origin,
) -> pa.Table:
    """Rows of ``events``."""
    if not len(members):
        return EVENTS.empty_table()
    count = len(members)
    place = _places(members, len(rows))
    time, value, what, step = np.ascontiguousarray(rows[members].T)[:4]
    step = step >> STEP_BITS
    columns = {
        "run_id": constant(origin.run_id, count),
        "attempt": pa.array(np.full(count, origin.attempt, np.int32)),
        "rank": pa.array(np.full(count, origin.rank, np.int32)),
        "step": nullable(step - 1, step == 0),
        "name": by_id(what >> NAME_SHIFT & NAME_MASK, definitions.names),
        "time_ns": pa.array(time + origin.offset_ns),
        "value": pa.array(value.view(np.float64), mask=(what & int(Flag.VALUE)) == 0),
        "text": pa.array(texts(rows, types, owners, place, count), pa.string()),
        "source": pa.nulls(count, EVENTS.field("source").type),
        "attributes": attributes(
            rows, types, owners, place, count, definitions, reserved=False
        ).column,
    }
    return pa.Table.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS)
