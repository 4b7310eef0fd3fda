"""What the detectors look at: one small row for each rank and step, and what was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = [
    "CLASSES",
    "PER_STEP",
    "PHASES",
    "Floats",
    "Group",
    "Ints",
    "Overview",
    "Tables",
    "overview",
]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CLASSES = ("compute", "data", "checkpoint", "eval", "compile", "gc", "other")
"""The classes of the partition beside the exposed communication."""
EXPOSED = ("exposed_wait", "exposed_queue", "exposed_transfer")
TOTALS = ("wait_total", "queue_total", "transfer_total")
PHASES = (
    "data", "forward", "backward", "optimizer", "checkpoint", "eval", "compile", "gc", "other"
)  # fmt: skip
"""What own work is made of."""
PER_STEP = ("wall", "blocked", *EXPOSED, *TOTALS, *CLASSES, *(f"own_{phase}" for phase in PHASES))


@dataclass(frozen=True, slots=True)
class Overview:
    """What was recorded in one attempt."""

    attempt: int
    attempts: int
    run_id: str
    ranks: tuple[int, ...]
    first_ns: int
    last_ns: dict[int, int]
    """The last instant at which each rank recorded something."""
    spans: int
    communications: int
    open_spans: int
    first_step: int | None
    last_step: int | None
    steps: int
    """The most steps that one rank took."""
    stepless_end_ns: int
    """When the last span ended that belongs to no step."""
    device_ranks: tuple[int, ...]
    step_spans: dict[int, dict[str, int]] = field(default_factory=dict)
    """How many spans each rank recorded inside of steps, by kind."""


@dataclass(slots=True)
class Group:
    """One operation in one group, summed over all windows."""

    group: str
    op: str
    direction: str | None
    group_size: int
    sent_before: bool = False
    """Parts of it were sent before the recorded arrival, so no bandwidth can be told."""
    calls: int = 0
    complete: int = 0
    bytes: float = 0.0
    timed_steps: int = 0
    timed_spans: int = 0
    wait: float = 0.0
    queue: float = 0.0
    transfer: float = 0.0


@dataclass(slots=True)
class Tables:
    """Arrays of steps × ranks; NaN where a rank has no such step. Times are nanoseconds."""

    steps: Ints
    """Their numbers in the queries."""
    labels: Ints
    """Their numbers as their owner counts them."""
    ranks: tuple[int, ...]
    values: dict[str, Floats]
    is_open: npt.NDArray[np.bool_]
    is_untraced: npt.NDArray[np.bool_]
    """Steps in which recording paused, so that its cost can be measured."""
    begin_ns: Ints
    imposed: Floats
    """What each rank alone cost the others, by arrivals."""
    inside: Floats
    """The part of it in groups that tie ranks to one unit."""
    excess: Floats | None
    """How much longer than its peers each rank itself worked; None where all waits are meetings."""
    ahead: Floats | None
    """The same with its sign: negative where a rank worked less."""
    unit_excess: Floats | None
    """How much longer than its peers' the unit of a rank worked, waits inside included."""
    unit_ahead: Floats | None
    lateness: Floats
    """Own arrival minus the median of the others', at the step's most waited-for meeting."""
    last: Ints
    """How many meetings each rank came last to."""
    meetings: Ints
    """How many meetings each step has."""
    calls: Ints
    """How many collectives each step has."""
    incomplete: Ints
    """How many of them lack members."""
    bytes: npt.NDArray[np.float64]
    every: int
    """Totals are known for steps that this divides."""
    shifts: dict[int, int] = field(default_factory=dict)
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)


def overview(engine: Engine) -> Overview | None:
    """Who recorded what in the last attempt; None where nothing was recorded at all."""
    rows = engine.sql(query("overview")).to_pylist()
    if not rows:
        return None
    attempt = max(row["attempt"] for row in rows)
    attempts = len({row["attempt"] for row in rows})
    rows = [row for row in rows if row["attempt"] == attempt]
    last: dict[int, int] = {}
    step_spans: dict[int, dict[str, int]] = {}
    for row in rows:
        last[row["rank"]] = max(row["last_ns"], last.get(row["rank"], 0))
        step_spans.setdefault(row["rank"], {})[row["kind"]] = row["step_spans"]
    stepped = [row for row in rows if row["kind"] == "step" and row["first_step"] is not None]
    return Overview(
        attempt,
        attempts,
        rows[0]["run_id"],
        tuple(sorted(last)),
        min(row["first_ns"] for row in rows),
        last,
        sum(row["spans"] for row in rows),
        sum(row["spans"] for row in rows if row["kind"] == "comm"),
        int(sum(row["open_spans"] for row in rows)),
        min((row["first_step"] for row in stepped), default=None),
        max((row["last_step"] for row in stepped), default=None),
        max((row["spans"] for row in stepped), default=0),
        max((row["stepless_end_ns"] or 0 for row in rows), default=0),
        tuple(sorted({row["rank"] for row in rows if row["kind"] == "kernel"})),
        step_spans,
    )
