"""The hot path: standard library only, never raises into the job, never blocks it."""

from tracekit.recorder._around import Around, around
from tracekit.recorder._current import (
    as_rank,
    bind_identity,
    cost_of,
    current,
    current_or_start,
    event,
    fact,
    install,
    recorders,
    remove,
    renumber,
    say_once,
    set_starter,
    span,
    step,
    tell_stopped,
    when_stopped,
)
from tracekit.recorder._overhead import pause
from tracekit.recorder._recorder import Home, Recorder
from tracekit.recorder._sink import Chunk, Sink
from tracekit.recorder._types import CollectiveType, EventType, span_type
from tracekit.recorder.spans import AttributedSpan, SpanType, Token, clock
from tracekit.recorder.threads import Here

__all__ = [
    "Around",
    "AttributedSpan",
    "Chunk",
    "CollectiveType",
    "EventType",
    "Here",
    "Home",
    "Recorder",
    "Sink",
    "SpanType",
    "Token",
    "around",
    "as_rank",
    "bind_identity",
    "clock",
    "cost_of",
    "current",
    "current_or_start",
    "event",
    "fact",
    "install",
    "pause",
    "recorders",
    "remove",
    "renumber",
    "say_once",
    "set_starter",
    "span",
    "span_type",
    "step",
    "tell_stopped",
    "when_stopped",
]
