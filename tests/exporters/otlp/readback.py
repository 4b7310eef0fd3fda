"""A span as a server gives it back, whatever the server's own form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

ARRIVAL_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Ids in hex, ``parent_id`` empty for a root; times in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, object]
    resource: Mapping[str, object] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    events: tuple[str, ...] = ()
    status: str = "UNSET"


def spans_of(request: ExportTraceServiceRequest) -> list[ReadSpan]:
    """All spans of a request, in its order."""
    return [
        ReadSpan(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            name=span.name,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=values_of(span.attributes),
            resource=values_of(of_resource.resource.attributes),
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            events=tuple(event.name for event in span.events),
            status=("UNSET", "OK", "ERROR")[span.status.code],
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def values_of(attributes: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: value_of(pair.value) for pair in attributes}


def value_of(value: AnyValue) -> object:
    """A value in Python's types; bool, int, float, str and lists of them."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


def wait_for(read: Callable[[], list[T]], at_least: int) -> list[T]:
    """What ``read`` returns once it is that many, or after a minute, which the test then judges."""
    give_up = time.monotonic() + ARRIVAL_S
    while True:
        asked = time.monotonic()
        found = read()
        now = time.monotonic()
        if len(found) >= at_least or now > give_up:
            return found
        # A server that is busy answering us takes in nothing.
        time.sleep(max(0.1, 3 * (now - asked)))
