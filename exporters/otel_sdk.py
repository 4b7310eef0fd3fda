"""A run's spans for any ``SpanExporter`` of OpenTelemetry's SDK. Needs the extra ``otlp``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

from tracekit.dataset import Run
from tracekit.errors import MissingDependency, TracekitError
from tracekit.exporters._otel.names import SCOPE
from tracekit.exporters._otel.resource import given_resource
from tracekit.exporters._otel.spans import Items, OtelSpan, Portion, Shared
from tracekit.exporters._otel.traces import Traces
from tracekit.exporters._otlp.version import VERSION
from tracekit.exporters._records import Choice

try:
    from opentelemetry import context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
except ImportError as error:
    raise MissingDependency("opentelemetry-sdk", "otlp") from error

__all__ = ["Choice", "HandedOver", "export", "hand_over", "readable", "unobserved"]

BATCH = 512
"""Spans of one call, as the SDK's own batches."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_ERROR, _UNSET = Status(StatusCode.ERROR), Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope(SCOPE, VERSION)
_LONGEST_REASON = 200


@dataclass(slots=True)
class HandedOver:
    """What became of spans: how many an exporter took, how many not, and why the first ones."""

    taken: int = 0
    failed: int = 0
    reason: str = ""


def export(run: Run, span_exporter: SpanExporter, choice: Choice | None = None) -> int:
    """Hand the chosen part of a run's last attempt to an exporter; returns how many spans it took.

    A batch that fails does not keep the others back. The exporter is not shut down. Raises
    ``UsageError`` as other exports do, and ``TracekitError`` at the end when spans were not taken.
    """
    done = HandedOver()
    with unobserved():
        traces = Traces(run, choice or Choice(), given=given_resource())
        hand_over(chain.from_iterable(traces), span_exporter, done)
    if done.failed:
        raise TracekitError(
            f"{type(span_exporter).__name__} did not take {done.failed:,} of"
            f" {done.taken + done.failed:,} spans: {done.reason}"
        )
    return done.taken


def hand_over(
    portions: Iterable[Portion],
    span_exporter: SpanExporter,
    done: HandedOver,
    give_up: Callable[[], bool] = lambda: False,
) -> None:
    """Hand spans to an exporter in batches, counting in ``done``; what it raises is counted too."""
    spans = (span for portion in portions for span in readable(portion))
    while not give_up() and (batch := list(islice(spans, BATCH))):
        try:
            failed = span_exporter.export(batch) is SpanExportResult.FAILURE
            reason = "it said so, and not why"
        except Exception as error:
            failed = True
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        if failed:
            done.failed += len(batch)
            done.reason = done.reason or reason
        else:
            done.taken += len(batch)


@contextmanager
def unobserved() -> Iterator[None]:
    """What an exporter does inside is not traced by instrumentations: it would have no end."""
    key = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
    token = context.attach(context.set_value(key, True))
    try:
        yield
    finally:
        context.detach(token)


def readable(portion: Portion) -> Iterator[ReadableSpan]:
    """The spans of a portion as the SDK hands them to exporters."""
    resource = _resource(portion.resource)
    shared_parts: dict[Shared, tuple[int, Status]] = {}
    for span in portion.spans:
        shared = span.shared
        parts = shared_parts.get(shared)
        if parts is None:
            trace_id = int.from_bytes(shared.trace_id, "big")
            parts = shared_parts[shared] = trace_id, _ERROR if shared.error else _UNSET
        trace_id, status = parts
        yield ReadableSpan(
            shared.name,
            _context(trace_id, span.span_id),
            _context(trace_id, span.parent_id) if span.parent_id else None,
            resource,
            dict(shared.attributes + span.attributes),
            [Event(event.name, dict(event.attributes), event.time_ns) for event in span.events],
            _links(span),
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )


def _links(span: OtelSpan) -> list[Link]:
    return [
        Link(_context(int.from_bytes(link.trace_id, "big"), link.span_id), dict(link.attributes))
        for link in span.links
    ]


def _context(trace_id: int, span_id: bytes) -> SpanContext:
    return SpanContext(trace_id, int.from_bytes(span_id, "big"), False, _SAMPLED)


@lru_cache(maxsize=1 << 12)
def _resource(items: Items) -> Resource:
    return Resource(dict(items))
