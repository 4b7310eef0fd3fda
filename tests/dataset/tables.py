"""Small tables of spans, events and facts with sensible values in all columns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit.dataset import EVENTS, FACTS, SPANS, Run, open_run

SECOND = 1_000_000_000
UNIX = 1_790_000_000 * SECOND

_SPAN = {
    "run_id": "run-1",
    "attempt": 0,
    "rank": 0,
    "kind": "user",
    "name": "work",
    "clock": "host",
    "start_ns": UNIX,
    "duration_ns": 10,
    "is_open": False,
}
_EVENT = {"run_id": "run-1", "attempt": 0, "rank": 0, "name": "loss", "time_ns": UNIX}
_FACT = {"run_id": "run-1", "attempt": 0, "rank": 0, "name": "seed", "value": "17"}


def span_table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{**_SPAN, **row} for row in rows], schema=SPANS)


def event_table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{**_EVENT, **row} for row in rows], schema=EVENTS)


def fact_table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{**_FACT, **row} for row in rows], schema=FACTS)


def span_ids(run: Run) -> list[tuple[int, int, int]]:
    """Attempt, rank and id of all spans, each as often as it is there."""
    rows = run.table("spans", ["attempt", "rank", "span_id"]).to_pylist()
    return sorted((row["attempt"], row["rank"], row["span_id"]) for row in rows)


def opened(run_dir: Path) -> list[tuple[int, int, int]]:
    with open_run(run_dir) as run:
        return span_ids(run)
