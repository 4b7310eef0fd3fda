"""What the table of facts says about each rank, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = ["Facts", "RankFacts", "read_facts", "with_facts"]

_OF_OTHERS = ("communicator",)
"""Kept as well, but a run that has nothing else is no run of ours."""
_KEPT = frozenset(
    """
    checkpoint_state ddp device initial_parameters loader model reduction sampler seeds strategy
    tf_config tf_dataset tf_epoch versions
    """.split()  # noqa: SIM905
)
"""Facts that detectors read as they were told."""

_BY_TRUST = ("", "groups", "group_names", "deepspeed", "megatron", "device_mesh", "user")
"""Where a role may come from; of several, the last one here counts."""


@dataclass(slots=True)
class RankFacts:
    """One rank of the attempt: who it is, how it ended, what it was seen doing."""

    host: str = ""
    identity: dict[str, Any] = field(default_factory=dict)
    identities: int = 0
    domain: str | None = None
    clock_error_us: float | None = None
    end: dict[str, Any] = field(default_factory=dict)
    end_ns: int | None = None
    stacks: list[dict[str, Any]] = field(default_factory=list)
    heartbeat_ns: int | None = None
    last_seq: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Last enqueued and last completed sequence of each group."""
    role: dict[str, int] = field(default_factory=dict)
    """Its coordinates in the parallel groups, as somebody told them."""
    role_source: str = ""
    dropped: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    """Nanoseconds that recording took there: a span (span_ns), a collective (call_ns)."""
    batch: float | None = None
    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What else was told, by name, the oldest first."""

    def told(self, name: str) -> list[dict[str, Any]]:
        """All that was told under a name, the oldest first."""
        return self.objects.get(name, [])

    def last(self, name: str) -> dict[str, Any]:
        """What was told last under a name; empty where nothing was."""
        return next(reversed(self.told(name)), {})


@dataclass(slots=True)
class Facts:
    """The facts of one attempt."""

    ranks: dict[int, RankFacts] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    group_names: dict[str, str] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    """What carries the calls of a group, where that is told."""
    world_size: int = 0

    @property
    def recorded(self) -> bool:
        """Whether ranks recorded what they did, so that everything else is a second source."""
        return any(of.heartbeat_ns or of.domain for of in self.ranks.values())

    def of(self, rank: int) -> RankFacts:
        """The facts of a rank, empty when there are none."""
        return self.ranks.setdefault(rank, RankFacts())


def with_facts(engine: Engine, seen: Overview | None) -> Overview | None:
    """The overview of a run; of one that ended before its first span, who told something."""
    if seen is not None:
        return seen
    rows = engine.sql(query("told")).to_pylist()
    if not any(row["name"] in _KEPT or row["name"] == "exception" for row in rows):
        return None
    attempts = {row["attempt"] for row in rows}
    rows = [row for row in rows if row["attempt"] == max(attempts)]
    last: dict[int, int] = {}
    for row in rows:
        last[row["rank"]] = max(last.get(row["rank"], 0), row["last_ns"] or 0)
    first = min((row["first_ns"] for row in rows if row["first_ns"]), default=0)
    return Overview(
        max(attempts), len(attempts), rows[0]["run_id"], tuple(sorted(last)), first,
        {rank: max(time, first) for rank, time in last.items()}, 0, 0, 0, None, None, 0, 0, (),
    )  # fmt: skip


def read_facts(engine: Engine, attempt: int) -> Facts:
    """Read the facts of an attempt; what has another shape than expected is passed over."""
    rows = engine.sql(
        f"SELECT rank, host, name, value, time_ns FROM facts WHERE attempt = {attempt}"
    )
    found = Facts()
    for row in sorted(rows.to_pylist(), key=lambda row: row["time_ns"] or 0):
        try:
            value = json.loads(row["value"])
        except ValueError:
            continue
        _take(found, row, value)
    for rank in found.ranks.values():
        rank.stacks.sort(key=lambda stack: stack.get("time_ns") or 0)
    return found


def _take(found: Facts, row: Mapping[str, Any], value: Any) -> None:
    name, rank = row["name"], row["rank"]
    if name == "group" and isinstance(value, dict) and "id" in value:
        group = str(value["id"])
        found.groups[group] = tuple(sorted(int(member) for member in value.get("ranks") or ()))
        found.group_names[group] = str(value.get("name") or group)
        if value.get("backend"):
            found.backends[group] = str(value["backend"])
    if rank is None:
        return
    of = found.of(rank)
    of.host = of.host or row["host"] or ""
    if name == "heartbeat":
        time = value.get("time_ns") if isinstance(value, dict) else value
        of.heartbeat_ns = time if isinstance(time, int) else row["time_ns"]
    elif name == "batch_size" and isinstance(value, (int, float)):
        of.batch = float(value)
    elif isinstance(value, dict):
        _take_object(found, of, name, value, row["time_ns"])


def _take_object(
    found: Facts, of: RankFacts, name: str, value: dict[str, Any], time_ns: int | None
) -> None:
    if name in _KEPT or name in _OF_OTHERS:
        of.objects.setdefault(name, []).append(value)
    if name == "role":
        _take_role(of, value, str(value.get("source") or ""))
    elif name == "rank":
        if isinstance(value.get("role"), dict):
            _take_role(of, value["role"], "user")
        of.identities += 1
        of.identity = {**value, **of.identity}
        of.host = str(value.get("host") or of.host)
        of.domain = of.domain or value.get("clock_domain")
        found.world_size = max(found.world_size, int(value.get("world_size") or 0))
    elif name == "clock":
        of.domain = value.get("domain") or of.domain
        of.clock_error_us = value.get("error_us", of.clock_error_us)
    elif name == "end_state":
        if not of.end or of.end.get("state") in (None, "running", "vanished"):
            of.end = value
            of.end_ns = value.get("time_ns") or time_ns
    elif name == "stack":
        of.stacks.append({"time_ns": time_ns, **value})
    elif name == "last_seq":
        enqueued, completed = value.get("enqueued"), value.get("completed")
        of.last_seq[str(value.get("group"))] = (int(enqueued or 0), int(completed or 0))
    elif name == "cost":
        of.cost.update({k: float(v) for k, v in value.items() if isinstance(v, (int, float))})
    elif name == "dropped":
        of.dropped += int(value.get("spans") or 0)


def _take_role(of: RankFacts, told: Mapping[str, Any], source: str) -> None:
    place = {name: at for name, at in told.items() if isinstance(at, int)}
    trust = [_BY_TRUST.index(s) if s in _BY_TRUST else 0 for s in (source, of.role_source)]
    if place and trust[0] >= trust[1]:
        of.role, of.role_source = place, source
