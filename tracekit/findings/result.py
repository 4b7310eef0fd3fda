"""The whole verdict over a run, as plain values that analysis hands to reports and exporters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.findings._finding import Finding

__all__ = [
    "Analysis",
    "Clock",
    "ClockDomain",
    "CollectiveSummary",
    "CoverageSummary",
    "Mended",
    "Overhead",
    "Questions",
    "RankSummary",
    "RunSummary",
    "Setup",
    "Shares",
    "StepTimes",
    "StragglerSummary",
    "WhatIf",
]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Which run this is, and how much of it was looked at."""

    id: str
    world_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    steps: int
    """Steps that all ranks completed."""
    duration_s: float
    hosts: int
    attempt: int = 0
    attempts: int = 1
    first_step: int | None = None
    last_step: int | None = None
    used_steps: int = 0
    """Steps that the statistics rest on."""
    warm_up_steps: int = 0
    label: str | None = None
    """What its owner calls it."""


@dataclass(frozen=True, slots=True)
class Questions:
    """The four questions of the owner of a training, each answered in one sentence or None."""

    lagging: str | None = None
    blocked: str | None = None
    idle: str | None = None
    fixed: str | None = None


@dataclass(frozen=True, slots=True)
class ClockDomain:
    """One clock: the ranks of one boot of one host."""

    host: str
    ranks: tuple[int, ...]
    offset_us: float | None = 0.0
    drift_ppm: float | None = 0.0
    error_us: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Whether times of different ranks may be compared, and how exactly."""

    aligned: bool
    error_us: float | None
    domains: tuple[ClockDomain, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps took; milliseconds."""

    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of the steps' time. The first eight add up to one; wait, queue and transfer add up to
    the exposed communication, the three totals to the communication total."""

    compute: float
    exposed_communication: float
    data: float
    checkpoint: float
    eval: float
    compile: float
    gc: float
    other: float
    wait: float
    queue: float
    transfer: float
    communication_total: float
    wait_total: float
    queue_total: float
    transfer_total: float
    utilization: float | None


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank in a mean step; milliseconds. None where nothing is known."""

    rank: int
    host: str
    own_work_ms: float | None = None
    mean_ratio: float | None = None
    lateness_ms: float | None = None
    imposed_wait_ms: float | None = None
    wait_ms: float | None = None
    arrived_last: float | None = None
    own_ms: Mapping[str, float] = field(default_factory=dict)
    """Own work by phase."""
    device: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class StragglerSummary:
    """A rank that is slow by some rule; ``kind`` is rank, intermittent or stage."""

    rank: int
    kind: str
    cause: str
    slowdown: float
    imposed_wait_ms: float
    rules: tuple[str, ...]
    p: float | None
    certainty: str
    excess_ms: Mapping[str, float] = field(default_factory=dict)
    """By how much each phase takes longer than on the rank's peers."""
    ranks: tuple[int, ...] = ()
    """All ranks it is about: of a stage, or late together."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What remains of the slowdown if this rank worked as the others do."""

    rank: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How much longer steps take than if all ranks did the mean work."""

    slowdown: float
    without: tuple[Mended, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """One operation in one group; milliseconds of a mean rank in a mean step."""

    op: str
    group: str
    group_size: int
    count: int
    bytes: int
    wait_ms: float | None = None
    queue_ms: float | None = None
    transfer_ms: float | None = None
    algbw_gbs: float | None = None
    """By the time of the transfer alone; None where that is not known."""
    busbw_gbs: float | None = None
    call_ms: float | None = None
    """How long one call takes a mean rank, its wait for others included."""
    algbw_with_wait_gbs: float | None = None
    """By that time: a lower bound of what the network does."""
    busbw_with_wait_gbs: float | None = None
    source: str = "spans"
    """spans of the run, or nccl_inspector."""


@dataclass(frozen=True, slots=True)
class CoverageSummary:
    """What the verdict is based on, and what could not be used."""

    files: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason."""
    dropped_spans: int = 0
    open_spans: int = 0
    torn_slots: int = 0
    duplicate_ranks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The processes that claim a rank, the one that was analyzed first."""
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    """Where the journals of ranks lie that are not here, as host:path."""
    exports: tuple[Mapping[str, Any], ...] = ()
    """What became of live exports: endpoint, spans, rejected, refused, steps, left_steps,
    left_spans, folded, finished, message."""


@dataclass(frozen=True, slots=True)
class Setup:
    """With what the ranks trained, as they told it themselves."""

    strategy: str | None = None
    replicas: int | None = None
    workers: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind work, over all ranks."""
    communication: tuple[str, ...] = ()
    """What carries collectives: a backend, or the implementation that was asked for."""
    seen_on: tuple[str, ...] = ()
    """Where profiles showed collectives to run, host or device; empty without a profile."""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Overhead:
    """What recording cost. Accounted: spans times what one costs on that machine. Measured: by
    how much traced steps are longer than untraced ones, with the interval of 95 %."""

    spans_per_step: float
    accounted_us: float | None = None
    """A step, on the thread that trains; None where ranks do not tell what a span costs."""
    accounted_share: float | None = None
    slowdown: float | None = None
    low: float | None = None
    high: float | None = None
    shown: bool | None = None
    """Whether the interval is narrow enough to say something; None where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The verdict over a run and the numbers it rests on."""

    symptom: str
    phase: str
    run: RunSummary
    questions: Questions
    clock: Clock
    coverage: CoverageSummary
    step_ms: StepTimes | None = None
    samples_per_s: float | None = None
    shares: Shares | None = None
    ranks: tuple[RankSummary, ...] = ()
    stragglers: tuple[StragglerSummary, ...] = ()
    what_if: WhatIf | None = None
    collectives: tuple[CollectiveSummary, ...] = ()
    findings: tuple[Finding, ...] = ()
    overhead: Overhead | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """What single detectors know beyond this; not part of the contract."""
    setup: Setup | None = None
