"""Spans that programs make with OpenTelemetry's SDK become spans of the run.

    provider.add_span_processor(TracekitSpanProcessor())

takes each span when it starts and ends: its step is the one it started in, and a span that never
ends is known as open. ``TracekitSpanExporter`` is for pipelines that take exporters only; the step
is then found by time. Needs the extra ``otlp``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracekit import recorder
from tracekit.errors import MissingDependency
from tracekit.recorder import Recorder, SpanType, Token, say_once, span_type

try:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import SpanContext, SpanKind, StatusCode
except ImportError as error:
    raise MissingDependency("opentelemetry-sdk", "otlp") from error

__all__ = ["TracekitSpanExporter", "TracekitSpanProcessor"]

OURS = "tracekit"
"""The instrumentation scope of what tracekit exports: it must not come back."""
LANE = "otel:"
OTHER = "~other"
MOST_OPEN = 256
"""Open spans that are held; the rows for open spans are not ours alone."""
MOST_KNOWN = 4096
"""Spans under which later ones can still find their place."""
MOST_NAMES = 1024
MOST_LANES = 64
MOST_ATTRIBUTES = 100
MOST_BYTES = 3400
"""Of attributes as JSON: a journal has room for 4 KB of a span's."""
LONGEST_VALUE = 1024
LARGEST_BITS = 256
_STEP_SHIFT = 16
_SOON_NS = 1_000_000
_RESERVED = ("launch_ns", "device")
"""Attributes that would become columns of the run."""

Key = tuple[int, int]
"""Trace and span of OpenTelemetry."""


class TracekitSpanProcessor(SpanProcessor):
    """Puts every span of a provider into the run, under the step it started in."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Open the span in the run; silent where nothing records."""
        try:
            _book.begin(span)
        except Exception as error:
            _say(error)

    def on_end(self, span: ReadableSpan) -> None:
        """Close it, with the times and attributes that it has."""
        try:
            _book.end(span, _offset())
        except Exception as error:
            _say(error)


class TracekitSpanExporter(SpanExporter):
    """Puts ended spans into the run; those of the newest 256 steps get their step."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Record spans; always a success, also where nothing records."""
        try:
            offset = _offset()
            # Children end first; recorded after their parents they can be put under them.
            for span in sorted(spans, key=lambda span: span.start_time or 0):
                _book.end(span, offset)
        except Exception as error:
            _say(error)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return True


def _say(error: Exception) -> None:
    say_once(f"a span of OpenTelemetry was not recorded as it is: {type(error).__name__}: {error}")


class _Place(NamedTuple):
    """Where a span stands in the run."""

    recorder: Recorder
    id: int
    step: int


@dataclass(slots=True)
class _Book:
    """What is known of spans: those that are open, and where the newest stand.

    No lock: threads share dictionaries only, and a span that two threads miss lacks its parent.
    """

    open: dict[Key, tuple[SpanType, Token]] = field(default_factory=dict)
    places: dict[Key, _Place] = field(default_factory=dict)
    types: dict[tuple[str, str], SpanType] = field(default_factory=dict)
    lanes: set[str] = field(default_factory=set)

    def begin(self, span: Span) -> None:
        """Open a span, under its parent or under what is open in this thread."""
        key = _key(span.get_span_context())
        if len(self.open) >= MOST_OPEN or not _is_new(span, key, self.places):
            return
        type_ = self.type_of(span)
        if recorder.pause.on:  # recording costs nothing now, to be compared with
            self.open[key] = type_, []
            return
        token = type_.begin()
        self.place(span, key, token)
        self.open[key] = type_, token

    def end(self, span: ReadableSpan, offset: int) -> None:
        """Record a span with its times; one that was not opened is placed by them."""
        key = _key(span.get_span_context())
        start = (span.start_time or 0) - offset
        end = max(start, (span.end_time or 0) - offset)
        type_, token = self.open.pop(key, (None, None))
        if token is None:
            if not _is_new(span, key, self.places):
                return
            type_ = self.type_of(span)
            token = type_.begin()
            _by_time(token, start)
            self.place(span, key, token)
        elif not token:
            return
        elif start < token[3] - _SOON_NS:  # made afterwards, with times of the past
            _by_time(token, start)
        assert type_ is not None
        token[3] = start
        renamed = self.type_of(span)
        if renamed is not type_:
            token[2] += renamed.what - type_.what
        failed = span.status.status_code is StatusCode.ERROR
        attributes: dict[str, Any] = {}
        try:
            attributes = _attributes(span, self.is_folded(span))
        finally:  # the span is worth more than its attributes, and must not stay open
            type_.end(token, attributes, failed, at=end)

    def place(self, span: ReadableSpan, key: Key, token: Token) -> None:
        """Put a begun span under its parent where both are in one step; remember where it is."""
        recorder_, step = token[0], token[4] >> _STEP_SHIFT
        parent = span.parent
        around = self.places.get(_key(parent)) if parent is not None else None
        if around is not None and around.recorder is recorder_ and around.step == step:
            token[6] = max(token[6], around.id)  # what began later is further inside
        if not self.places:
            recorder.when_stopped(self.forget)
        if len(self.places) >= MOST_KNOWN:
            with suppress(RuntimeError):  # another thread is at it
                self.places.pop(next(iter(self.places)), None)
        self.places[key] = _Place(recorder_, token[5], step)

    def forget(self) -> None:
        """Nothing of a recorder that stopped is kept."""
        self.open.clear()
        self.places.clear()

    def type_of(self, span: ReadableSpan) -> SpanType:
        """The span type of a name and an instrumentation; few enough for any program."""
        name, scope = _named(span)
        known = self.types.get((name, scope))
        if known is not None:
            return known
        if len(self.types) >= MOST_NAMES:
            name = OTHER
        if scope not in self.lanes and len(self.lanes) >= MOST_LANES:
            scope = OTHER
        self.lanes.add(scope)
        if (name, scope) not in self.types:
            self.types[name, scope] = span_type(name, lane=LANE + scope)
        return self.types[name, scope]

    def is_folded(self, span: ReadableSpan) -> bool:
        """Whether name or instrumentation were one too many."""
        return _named(span) not in self.types


_book = _Book()
"""One for all processors and exporters: a span that several of them get is recorded once."""


def _key(context: SpanContext | None) -> Key:
    return (context.trace_id, context.span_id) if context is not None else (0, 0)


def _named(span: ReadableSpan) -> tuple[str, str]:
    scope = span.instrumentation_scope
    return span.name or "span", scope.name if scope is not None and scope.name else ""


def _is_new(span: ReadableSpan, key: Key, known: Mapping[Key, _Place]) -> bool:
    scope = span.instrumentation_scope
    ours = scope is not None and scope.name == OURS
    return not ours and key not in known and recorder.current() is not None


def _by_time(token: Token, start: int) -> None:
    """Put a span into the step that was open when it started, not into what is open now."""
    token[4], token[6] = token[0].step_at(start)


def _offset() -> int:
    """Unix time minus the recorder's clock, now: what the clock's setting changed is in it."""
    readings = []
    for _ in range(3):
        before = recorder.clock()
        unix = time.time_ns()
        after = recorder.clock()
        readings.append((after - before, unix - (before + after) // 2))
    return min(readings)[1]


class _Text(str):
    """A text of somebody else: written as JSON, so that it takes no room among known texts."""

    __slots__ = ()


def _attributes(span: ReadableSpan, is_folded: bool) -> dict[str, Any]:
    """What of a span is kept as attributes; of too many or too long ones the first."""
    trace_id, span_id = _key(span.get_span_context())
    found: dict[str, Any] = {
        "otel.trace_id": _Text(f"{trace_id:032x}"),
        "otel.span_id": _Text(f"{span_id:016x}"),
    }
    if span.parent is not None:
        found["otel.parent_span_id"] = _Text(f"{span.parent.span_id:016x}")
    if span.kind is not SpanKind.INTERNAL:
        found["otel.kind"] = span.kind.name.lower()
    told: dict[str, Any] = {}
    if is_folded:
        told["otel.name"], told["otel.scope.name"] = _named(span)
    if span.status.description:
        told["otel.status_description"] = span.status.description
    told.update(span.attributes or {})
    for event in span.events:
        if event.name == "exception":
            told.update(event.attributes or {})
            told.pop("exception.stacktrace", None)
    room, dropped = MOST_BYTES, 0
    for name, value in told.items():
        name = str(name)
        name = f"otel.{name}" if name in _RESERVED or name in found else name
        kept, size = _value(value)
        size += _size(name) + 4
        if size > room or len(found) >= MOST_ATTRIBUTES:
            dropped += 1
            continue
        room -= size
        found[name] = kept
    if dropped:
        found["otel.dropped_attributes"] = dropped
    return found


def _value(value: Any) -> tuple[Any, int]:
    """A value as it is written, and about how many bytes it takes there as JSON at most."""
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        value = f"<integer of {value.bit_length()} bits>"
    if value is None or isinstance(value, (bool, int, float)):
        return value, 0 if not isinstance(value, int) or value.bit_length() < 64 else 80
    if isinstance(value, bytes):
        value = value[:LONGEST_VALUE].decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        text = _Text(value[:LONGEST_VALUE])
        return text, _size(text)
    try:
        dumped = json.dumps(value, default=str)
    except (TypeError, ValueError):
        dumped = json.dumps(str(value)[:LONGEST_VALUE])
    if len(dumped) > LONGEST_VALUE:
        text = _Text(dumped[:LONGEST_VALUE])
        return text, _size(text)
    return value, len(dumped)


def _size(text: str) -> int:
    """Bytes of a text as JSON, at most."""
    if text.isascii() and text.isprintable():  # ten times as fast as to make the JSON
        return len(text) + text.count('"') + text.count("\\") + 2
    return len(json.dumps(text))
