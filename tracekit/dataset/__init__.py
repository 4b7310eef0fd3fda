"""The run directory and its tables: parts, compaction, and opening a run in any state."""

from tracekit.dataset.compaction import Compacted, compact
from tracekit.dataset.conversion import Converted, convert, drop_covered_segments, finalize
from tracekit.dataset.coverage import Attempt, Coverage, Duplicate, Elsewhere
from tracekit.dataset.engine import DuckDB, Engine, Source
from tracekit.dataset.parts import write_table
from tracekit.dataset.run import Run, open_run
from tracekit.dataset.schema import EVENTS, FACTS, SPANS, TABLES

__all__ = [
    "EVENTS",
    "FACTS",
    "SPANS",
    "TABLES",
    "Attempt",
    "Compacted",
    "Converted",
    "Coverage",
    "DuckDB",
    "Duplicate",
    "Elsewhere",
    "Engine",
    "Run",
    "Source",
    "compact",
    "convert",
    "drop_covered_segments",
    "finalize",
    "open_run",
    "write_table",
]
