"""What text logs told: errors of ranks in order, what was said of the job, who writes late."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = ["LogEvent", "LogWait", "Logs", "read_logs", "with_logs"]

_CAUSES = ("cause", "memory")


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An error, timeout or warning that a rank wrote."""

    rank: int
    time_ns: int
    text: str
    source: str
    role: str
    """What it says about its rank: cause, memory, effect, wait, status, mismatch, missing,
    logged; told where it quotes a cause that others judge; survived where the rank went on."""
    cause: str | None
    frame: str | None
    pattern: str
    timed: bool

    @property
    def is_cause(self) -> bool:
        """Whether it is a trouble of its rank's own that ended it."""
        return self.role in _CAUSES

    @property
    def is_error(self) -> bool:
        """Whether it is one of the lines that people call an error."""
        return self.role not in ("status", "survived")


@dataclass(frozen=True, slots=True)
class LogWait:
    """A call that a rank gave up, told beside the rank's own records."""

    rank: int
    group: str
    seq: int
    op: str
    start_ns: int
    end_ns: int
    """By the log's own clock, which may be in another zone than the records'."""
    is_open: bool
    members: tuple[int, ...]
    source: str


@dataclass(slots=True)
class Logs:
    """The logs of one attempt."""

    events: list[LogEvent] = field(default_factory=list)
    job: list[dict[str, Any]] = field(default_factory=list)
    """Lines about the job, a process or a node; ``source`` and ``time_ns`` beside their own."""
    missing: list[dict[str, Any]] = field(default_factory=list)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    last: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last line of each rank that left a log."""
    doing: dict[int, str] = field(default_factory=dict)
    """What ranks were busy with that wrote this last."""
    drift: dict[int, dict[str, Any]] = field(default_factory=dict)
    waits: list[LogWait] = field(default_factory=list)
    """Only where ranks recorded what they did themselves; else these are spans like theirs."""
    phase: str | None = None

    def first_error(self, rank: int) -> LogEvent | None:
        """The first error of a rank: what is its own before what came from others."""
        errors = [event for event in self.events if event.rank == rank and event.is_error]
        own = [event for event in errors if event.is_cause]
        return next(iter([*own, *errors]), None)

    def causes(self) -> list[LogEvent]:
        """Troubles of ranks' own, the earliest first."""
        return [event for event in self.events if event.is_cause]

    def about(self, *roles: str) -> list[dict[str, Any]]:
        """What was said of the job in some roles, the earliest first."""
        return [event for event in self.job if event.get("role") in roles]


def read_logs(engine: Engine, attempt: int) -> Logs | None:
    """What logs told of an attempt; None where there are none."""
    logs = Logs()
    for row in engine.sql(query("log_facts")).to_pylist():
        if row["attempt"] == attempt:
            _take(logs, row)
    for row in engine.sql(query("log_events", attempt=attempt)).to_pylist():
        told = _values(row["attributes"])
        if "role" in told and row["text"]:
            logs.events.append(
                LogEvent(
                    row["rank"], row["time_ns"], row["text"], row["source"] or "", told["role"],
                    told.get("class"), told.get("frame"), str(told.get("pattern")),
                    bool(told.get("timed")),
                )
            )  # fmt: skip
    anything = logs.events or logs.job or logs.last or logs.missing or logs.mismatches
    empty = not (anything or logs.waits)
    return None if empty else logs


def _take(logs: Logs, row: Mapping[str, Any]) -> None:
    try:
        value = json.loads(row["value"])
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    value = {**value, "source": row["source"] or value.get("source"), "time_ns": row["time_ns"]}
    if row["host"]:
        value.setdefault("host", row["host"])
    name, rank = row["name"], row["rank"]
    if name == "job_event":
        logs.job.append(value)
    elif name == "log_missing":
        logs.missing.append(value)
    elif name == "log_mismatch":
        logs.mismatches.append(value)
    elif name == "log_wait" and rank is not None:
        logs.waits.append(_wait(rank, value))
    elif name == "log_phase":
        logs.phase = value.get("phase")
    elif name == "log" and rank is not None:
        logs.last[rank] = value.get("last") or {}
        if value.get("doing"):
            logs.doing[rank] = str(value["doing"])
    elif name == "log_drift" and rank is not None:
        logs.drift[rank] = value


def _wait(rank: int, told: Mapping[str, Any]) -> LogWait:
    return LogWait(
        rank, str(told["group"]), int(told["seq"] or 0), str(told["op"]), int(told["start_ns"]),
        int(told["end_ns"]), bool(told["is_open"]), tuple(told["members"] or ()),
        str(told["source"]),
    )  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    pairs: Sequence[tuple[str, str]] = attributes or ()
    if isinstance(attributes, Mapping):
        pairs = list(attributes.items())
    return {key: value for key, text in pairs if (value := _json(text)) is not None}


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def with_logs(engine: Engine, seen: Overview | None) -> Overview | None:
    """The overview of a run of which logs are known too.

    Where nothing but logs and dumps was recorded, ranks with a log count as recorded; beside
    steps they do not, as their journals are missing all the same.
    """
    if seen is not None and seen.first_step is not None:
        return seen
    rows = engine.sql(query("log_facts")).to_pylist()
    if not rows:
        return seen
    attempts = {row["attempt"] for row in rows}
    attempt = max([*attempts, *([seen.attempt] if seen is not None else [])])
    times: dict[int, int] = {}
    known = [row["time_ns"] for row in rows if row["time_ns"]]
    for row in rows:
        if row["attempt"] == attempt and row["rank"] is not None:
            times[row["rank"]] = max(times.get(row["rank"], 0), row["time_ns"] or 0)
    if seen is not None and seen.attempt == attempt:
        last = {rank: max(times.get(rank, 0), seen.last_ns.get(rank, 0)) for rank in
                {*times, *seen.ranks}}  # fmt: skip
        return replace(seen, ranks=tuple(sorted(last)), last_ns=last)
    first = min(known, default=0)
    return Overview(
        attempt, len(attempts), rows[0]["run_id"], tuple(sorted(times)), first,
        times or {0: first}, 0, 0, 0, None, None, 0, 0, (),
    )  # fmt: skip
