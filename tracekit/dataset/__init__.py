"""The run directory and its tables: parts, compaction, and opening a run in any state."""

from tracekit.dataset.convert import Converted, convert, drop_covered_segments, finalize
from tracekit.dataset.parts import write_table
from tracekit.dataset.schema import EVENTS, FACTS, SPANS, TABLES

__all__ = [
    "EVENTS",
    "FACTS",
    "SPANS",
    "TABLES",
    "Converted",
    "convert",
    "drop_covered_segments",
    "finalize",
    "write_table",
]
