"""Spans as OTLP protobuf. Needs the extra ``otlp``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from tracekit.exporters._otel.names import SCOPE
from tracekit.exporters._otel.spans import Items, OtelSpan, Portion, Shared

__all__ = ["MOST_BYTES", "encode", "requests"]

MOST_BYTES = 2 << 20
"""Of one request, nearly: receivers take 4 MiB and more."""
_SPANS_A_LOOK = 256
_SAMPLED = 0x101
"""W3C flags: sampled; and the span says whether its parent is remote: it is not."""


def requests(portions: Iterable[Portion], version: str) -> Iterator[tuple[bytes, int]]:
    """Requests of a bounded size, each with the number of its spans."""
    request = ExportTraceServiceRequest()
    spans = size = 0
    for portion in portions:
        for low in range(0, len(portion.spans), _SPANS_A_LOOK):
            some = portion.spans[low : low + _SPANS_A_LOOK]
            added = _add(request, portion.resource, some, version)
            spans, size = spans + len(some), size + added
            if size >= MOST_BYTES:
                yield request.SerializeToString(), spans
                request, spans, size = ExportTraceServiceRequest(), 0, 0
    if spans:
        yield request.SerializeToString(), spans


def encode(portions: Iterable[Portion], version: str) -> bytes:
    """All spans as one request."""
    request = ExportTraceServiceRequest()
    for portion in portions:
        _add(request, portion.resource, portion.spans, version)
    encoded: bytes = request.SerializeToString()
    return encoded


def _add(
    request: ExportTraceServiceRequest, resource: Items, spans: list[OtelSpan], version: str
) -> int:
    """Add spans of a rank; returns about how many bytes they are."""
    if not request.resource_spans or request.resource_spans[-1].resource != _resource(resource):
        into = request.resource_spans.add(resource=_resource(resource))
        into.scope_spans.add().scope.CopyFrom(_scope(version))
    scope_spans = request.resource_spans[-1].scope_spans[0]
    add = scope_spans.spans.add
    size = 0
    for shared, span_id, parent_id, start, end, attributes, events, links in spans:
        encoded = shared.encoded
        if encoded is None:
            encoded = shared.encoded = _encode_shared(shared)
        # Parsing bytes into a message merges them: far cheaper than setting field by field.
        span = add()
        span.MergeFromString(encoded)
        span.span_id = span_id
        if parent_id:
            span.parent_span_id = parent_id
        span.start_time_unix_nano = start
        span.end_time_unix_nano = end
        size += len(encoded) + 48
        if attributes:
            _set(span.attributes.add, attributes)
            size += 40 * len(attributes)
        for event in events:
            added = span.events.add(name=event.name, time_unix_nano=event.time_ns)
            _set(added.attributes.add, event.attributes)
            size += 60 + 40 * len(event.attributes)
        for link in links:
            linked = span.links.add(trace_id=link.trace_id, span_id=link.span_id, flags=_SAMPLED)
            _set(linked.attributes.add, link.attributes)
            size += 40 + 40 * len(link.attributes)
    return size


def _encode_shared(shared: Shared) -> bytes:
    span = Span(
        trace_id=shared.trace_id,
        name=shared.name,
        kind=Span.SPAN_KIND_INTERNAL,
        flags=_SAMPLED,
    )
    _set(span.attributes.add, shared.attributes)
    if shared.error:
        span.status.code = Status.STATUS_CODE_ERROR
    encoded: bytes = span.SerializeToString()
    return encoded


def _set(add: Callable[..., Any], attributes: Items) -> None:
    for name, value in attributes:
        held = add(key=name).value
        kind = type(value)
        if kind is int:
            held.int_value = value
        elif kind is str:
            held.string_value = value
        elif kind is bool:
            held.bool_value = value
        else:
            held.double_value = value


def _resource(resource: Items) -> Resource:
    made = _resources.get(resource)
    if made is None:
        if len(_resources) > 1 << 12:
            _resources.clear()
        made = _resources[resource] = Resource()
        _set(made.attributes.add, resource)
    return made


def _scope(version: str) -> ScopeSpans:
    made = ScopeSpans()
    made.scope.name, made.scope.version = SCOPE, version
    return made.scope


_resources: dict[Items, Resource] = {}
