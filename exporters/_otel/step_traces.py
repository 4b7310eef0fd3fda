"""The spans of one step across ranks: what they waited for, links to who came last, one root."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.exporters._arrows import Calls
from tracekit.exporters._otel import names
from tracekit.exporters._otel.spans import (
    Items,
    OtelEvent,
    OtelLink,
    OtelSpan,
    RunIds,
    Shared,
    by_rank,
    clean,
    clean_time,
    items,
)
from tracekit.exporters._otel.waits import waits
from tracekit.exporters._values import Value, values

__all__ = [
    "ByRank",
    "Step",
    "attach",
    "events_of",
    "is_step",
    "nested",
    "root_span",
    "step_spans",
]

_FOR_CALLS = (
    "rank", "step", "start_ns", "kind", "name", "collective_op", "collective_group",
    "collective_seq", "group_size", "peer_rank",
)  # fmt: skip
_LEAST_LINKED_NS = 100_000
_LONGEST = np.iinfo(np.int64).max
_MOST_EVENTS = 128
_STEP = (names.SHARED["kind"], "step")
ByRank = dict[int, list[OtelSpan]]


class Step(NamedTuple):
    """A step of the ranks that were looked at."""

    by_rank: ByRank
    skew_ns: int = 0
    """How long a rank waited at most for one other."""
    last: int | None = None
    """Which rank that was."""


def step_spans(ids: RunIds, number: int, rows: pa.Table, domain: Callable[[int], str]) -> Step:
    """The spans of a step; ``rows`` are those of all ranks that are known, sorted by rank.

    ``domain`` names the clock of a rank: what is on two clocks is not compared.
    """
    columns = {name: values(rows[name]) for name in _FOR_CALLS}
    starts, durations = rows["start_ns"].to_numpy(), rows["duration_ns"].to_numpy()
    ends = starts + np.clip(durations, 0, _LONGEST - np.maximum(starts, 0))
    ranks = columns["rank"]
    numbers = rows["span_id"].to_numpy().tolist()
    extra: dict[int, Items] = {}
    links: dict[int, tuple[OtelLink, ...]] = {}
    skew, last = 0, None
    for wait in waits(Calls(columns, ends, {rank: domain(rank) for rank in set(ranks)})):
        row, source = wait.row, wait.source
        parts: Items = ((names.WAIT, wait.wait_ns), (names.TRANSFER, wait.transfer_ns))
        if wait.queue_ns:
            parts += ((names.QUEUE, wait.queue_ns),)
        if wait.lateness_ns is not None:
            parts += ((names.LATENESS, wait.lateness_ns),)
        if row != source:
            parts += ((names.LAST_RANK, ranks[source]),)
            if wait.wait_ns >= _LEAST_LINKED_NS:
                there = ids.trace(number), ids.span(ranks[source], numbers[source])
                links[row] = (OtelLink(*there),)
            if wait.wait_ns > skew:
                skew, last = wait.wait_ns, ranks[source]
        extra[row] = parts
    return Step(by_rank(rows, ids, extra, links), skew, last)


def events_of(rows: pa.Table) -> dict[int, list[OtelEvent]]:
    """Events by rank, as what stands on a span."""
    found: dict[int, list[OtelEvent]] = {}
    columns = ("rank", "name", "time_ns", "value", "text", "attributes")
    for rank, name, time, value, text, attributes in zip(
        *(values(rows[column]) for column in columns), strict=True
    ):
        told: dict[str, Value] = dict(attributes or {})
        own: Items = items(told)
        if text is not None:
            own = ((names.TEXT, clean(text)), *own)
        if value is not None:
            own = ((names.VALUE, value if np.isfinite(value) else str(value)), *own)
        event = OtelEvent(str(clean(name or "event")), clean_time(time), own)
        found.setdefault(rank, []).append(event)
    return found


def attach(spans: list[OtelSpan], events: list[OtelEvent]) -> list[OtelEvent]:
    """Put events on the span of the step; returns those for which there is none.

    A backend keeps 128 events of a span: the others are left.
    """
    for place, span in enumerate(spans):
        if is_step(span):
            spans[place] = span._replace(events=tuple(events[:_MOST_EVENTS]))
            return events[_MOST_EVENTS:]
    return events


def is_step(span: OtelSpan) -> bool:
    """Whether this is the span of a whole step."""
    return _STEP in span.shared.attributes


def nested(spans: list[OtelSpan], root_id: bytes) -> list[OtelSpan]:
    """The spans of a rank as one tree: what has no parent among them hangs on the span of the
    step, and that one, or everything where there is none, on the root."""
    known = {span.span_id for span in spans}
    top = next((span.span_id for span in spans if is_step(span)), root_id)
    return [
        span
        if span.parent_id in known
        else span._replace(parent_id=root_id if is_step(span) else top)
        for span in spans
    ]


def root_span(
    ids: RunIds, number: int, step: Step, own: Items, links: tuple[OtelLink, ...]
) -> OtelSpan:
    """One span around a step of all ranks."""
    every = [span for spans in step.by_rank.values() for span in spans]
    common: Items = (_STEP, (names.STEP, number))
    if step.last is not None:
        own = ((names.SKEW, step.skew_ns), (names.LAST_RANK, step.last), *own)
    return OtelSpan(
        Shared(ids.trace(number), "step", common),
        ids.named("step", number),
        b"",
        min(span.start_ns for span in every),
        max(span.end_ns for span in every),
        own,
        (),
        links,
    )
