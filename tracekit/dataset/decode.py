"""Records of a journal become rows of ``spans`` and ``events``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.dataset._attributes import Attributes, attributes, texts
from tracekit.dataset._columns import OTHER, Ids, Nulls, by_id, choice, constant, integers
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
_OF_COLLECTIVES = [name for name in SPANS.names if name.startswith("collective_")]
_OF_COLLECTIVES += ["group_size", "peer_rank"]
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
    records: Records, definitions: Definitions, origin: Origin, *, by_start: bool = False
) -> tuple[pa.Table, pa.Table]:
    """The spans and the events among records, in the order of the records.

    Spans are recorded when they end; ordered ``by_start`` their times take fewer bytes in a file.
    """
    types = records.types
    words = np.ascontiguousarray(records.rows.T)
    spans = np.flatnonzero((types == RecordType.SPAN) | (types == RecordType.COLLECTIVE))
    if by_start:
        spans = spans[np.argsort(words[0][spans], kind="stable")]
    events = np.flatnonzero(types == RecordType.EVENT)
    taken = attributes(records, _places(spans, len(types)), len(spans), definitions, reserved=True)
    return (
        span_table(_span_words(words, records, spans), definitions, origin, taken),
        _events(words, records, events, definitions, origin),
    )


def _places(members: Ints, count: int) -> Ints:
    """For each record its row in a table of ``members``, -1 when it is none."""
    places = np.full(count, -1)
    places[members] = np.arange(len(members))
    return places


def _span_words(words: Ints, records: Records, spans: Ints) -> SpanWords:
    """The words of the spans, with what their two forms do differently undone."""
    start, duration, what, step, ids, parent, size = (word[spans] for word in words[:7])
    collective = records.types[spans] == RecordType.COLLECTIVE
    site = np.zeros(len(spans), np.int64)
    places = np.flatnonzero(collective)
    if len(places):
        packed = ids[places]
        ids[places] = packed >> DISTANCE_BITS
        distance = packed & _DISTANCE_MASK
        site[places] = parent[places]
        parent[places] = np.where(distance > 0, ids[places] - distance, 0)
    lane = what >> LANE_SHIFT
    lane = np.where(lane == 0, records.lanes[spans], lane)
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
        **_common(origin, count),
        "step": integers(step - 1, Nulls(step == 0)),
        "micro_step": integers(micro - 1, Nulls(micro == 0), pa.int32()),
        "kind": by_id(what & 0xFF, _KINDS),
        "name": by_id(what >> NAME_SHIFT & NAME_MASK, definitions.names),
        "lane": by_id(words.lane, definitions.lanes),
        "clock": choice((what & int(Flag.DEVICE)) != 0, ["host", "device"]),
        "span_id": integers(words.id),
        "parent_id": integers(words.parent, Nulls(words.parent == 0)),
        "start_ns": integers(words.start + origin.offset_ns),
        "duration_ns": integers(words.duration),
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
        columns["launch_ns"] = integers(taken.launch_ns + origin.offset_ns, Nulls(~taken.launched))
        if taken.device is not None:
            columns["device"] = choice(taken.device, taken.devices, Nulls(taken.device < 0))
    return pa.Table.from_arrays([columns[name] for name in SPANS.names], schema=SPANS)


def _common(origin: Origin, count: int) -> dict[str, pa.Array]:
    return {
        "run_id": constant(origin.run_id, count),
        "attempt": pa.array(np.full(count, origin.attempt, np.int32)),
        "rank": pa.array(np.full(count, origin.rank, np.int32)),
    }


def _collectives(words: SpanWords, definitions: Definitions) -> dict[str, pa.Array]:
    """The columns of collectives, null in all other rows."""
    count = len(words.start)
    if not words.collective.any():
        return {name: pa.nulls(count, SPANS.field(name).type) for name in _OF_COLLECTIVES}
    none = Nulls(~words.collective)
    ids = words.site >> SEQ_BITS
    known = definitions.collectives
    last = max(known, default=0) + 1
    sizes, peers = np.zeros(last + 1, np.int32), np.full(last + 1, -1, np.int32)
    for id_, collective in known.items():
        sizes[id_] = collective.group_size
        peers[id_] = -1 if collective.peer is None else collective.peer
    ids = np.where((ids < 0) | (ids > last), last, ids)
    size, peer = sizes[ids], peers[ids]
    chosen = Ids(ids, known)

    def texts_of(field: str) -> pa.Array:
        def text(id_: int) -> str | None:
            found = known.get(id_)
            return getattr(found, field) if found else None if id_ == 0 else OTHER

        return chosen.texts(text)

    return {
        "collective_op": texts_of("op"),
        "collective_group": texts_of("group"),
        "collective_seq": integers(words.site & _SEQ_MASK, none),
        "collective_bytes": integers(words.size, none),
        "collective_dtype": texts_of("dtype"),
        "group_size": integers(size, Nulls(size == 0), pa.int32()),
        "peer_rank": integers(peer, Nulls(peer < 0), pa.int32()),
    }


def _events(
    words: Ints, records: Records, members: Ints, definitions: Definitions, origin: Origin
) -> pa.Table:
    """Rows of ``events``."""
    if not len(members):
        return EVENTS.empty_table()
    count = len(members)
    place = _places(members, len(records))
    time, value, what, step = (word[members] for word in words[:4])
    step = step >> STEP_BITS
    columns = {
        **_common(origin, count),
        "step": integers(step - 1, Nulls(step == 0)),
        "name": by_id(what >> NAME_SHIFT & NAME_MASK, definitions.names),
        "time_ns": integers(time + origin.offset_ns),
        "value": pa.array(value.view(np.float64), mask=(what & int(Flag.VALUE)) == 0),
        "text": pa.array(texts(records, place, count), pa.string()),
        "source": pa.nulls(count, EVENTS.field("source").type),
        "attributes": attributes(records, place, count, definitions, reserved=False).column,
    }
    return pa.Table.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS)
