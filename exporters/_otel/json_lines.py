"""Spans as OTLP JSON: one object of ``resourceSpans`` a line, as the collector's file exporter.

Unlike protobuf's own JSON, ids are hexadecimal, enumerations are numbers, integers of 64 bits
texts (OTLP specification, "JSON Protobuf Encoding").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from tracekit.exporters._otel.names import SCOPE
from tracekit.exporters._otel.spans import Items, OtelSpan, Portion
from tracekit.exporters._values import Value

__all__ = ["lines"]

_SPANS_A_LINE = 2048
_INTERNAL, _ERROR, _SAMPLED = 1, 2, 0x101


def lines(portions: Iterable[Portion], version: str) -> Iterator[bytes]:
    """A line for each rank's spans, for several where they are many."""
    for portion in portions:
        resource = {"attributes": _attributes(portion.resource)}
        for low in range(0, len(portion.spans), _SPANS_A_LINE):
            scope = {
                "scope": {"name": SCOPE, "version": version},
                "spans": [_span(span) for span in portion.spans[low : low + _SPANS_A_LINE]],
            }
            whole = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
            yield orjson.dumps(whole, option=orjson.OPT_APPEND_NEWLINE)


def _span(span: OtelSpan) -> dict[str, Any]:
    shared = span.shared
    made: dict[str, Any] = {
        "traceId": shared.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "flags": _SAMPLED,
        "name": shared.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(shared.attributes + span.attributes),
        "status": {"code": _ERROR} if shared.error else {},
    }
    if span.parent_id:
        made["parentSpanId"] = span.parent_id.hex()
    if span.events:
        made["events"] = [
            {
                "timeUnixNano": str(event.time_ns),
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ]
    if span.links:
        made["links"] = [
            {
                "traceId": link.trace_id.hex(),
                "spanId": link.span_id.hex(),
                "flags": _SAMPLED,
                "attributes": _attributes(link.attributes),
            }
            for link in span.links
        ]
    return made


def _attributes(attributes: Items) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    assert isinstance(value, float)
    assert math.isfinite(value)
    return {"doubleValue": value}
