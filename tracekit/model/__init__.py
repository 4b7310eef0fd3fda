"""The words of tracekit as types: kinds, collectives, identities, and the record."""

from tracekit.model.clocks import Correction, offset_now
from tracekit.model.collectives import DIRECTION_OF_OP, Collective, Direction, direction, group_id
from tracekit.model.ids import host8, span_id, step_trace_id
from tracekit.model.kinds import CLASS_OF_KIND, CLASSES, KINDS, Clock, kind_code

__all__ = [
    "CLASSES",
    "CLASS_OF_KIND",
    "DIRECTION_OF_OP",
    "KINDS",
    "Clock",
    "Collective",
    "Correction",
    "Direction",
    "direction",
    "group_id",
    "host8",
    "kind_code",
    "offset_now",
    "span_id",
    "step_trace_id",
]
