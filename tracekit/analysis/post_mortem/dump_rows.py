"""Dumps of Flight Recorder as importers wrote them: where ranks stood, in which calls they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = ["Dumps", "Held", "Part", "read_dumps"]


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part of a call."""

    rank: int
    group: str
    seq: int | None
    op: str
    peer: int | None
    start_ns: int
    is_open: bool
    dumps: int
    """In how many dumps of the rank it is open."""
    frame: str | None
    retired: bool
    """The watchdog gave it up without its end."""
    disagrees: str | None
    """What it is, where other ranks say otherwise."""
    source: str | None
    sent: tuple[int, ...] | None
    """Of calls that exchange: how many numbers go to each member, or all of them as one."""
    received: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Held:
    """Where a rank stands in a group; None: not known."""

    enqueued: int | None
    completed: int | None
    dumps: int
    sites: Mapping[int, str]
    """Where the code made the newest calls, by number."""


@dataclass(slots=True)
class Dumps:
    """All dumps of a job."""

    standing: dict[int, dict[str, Held]] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    frames: dict[int, str] = field(default_factory=dict)
    """Where each rank's code made its newest call."""
    written_ns: dict[int, int] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    """Ranks whose dumps hold neither calls nor numbers."""
    parts: list[Part] = field(default_factory=list)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def enqueued(self, rank: int, group: str) -> int | None:
        """The last call that a rank entered in a group."""
        held = self.standing.get(rank, {}).get(group)
        return held.enqueued if held else None

    def completed(self, rank: int, group: str) -> int | None:
        """The last call of a group that ended on a rank."""
        held = self.standing.get(rank, {}).get(group)
        return held.completed if held else None

    def calls(self) -> int:
        """The largest number of a call that a rank entered."""
        held = [one.enqueued or 0 for groups in self.standing.values() for one in groups.values()]
        return max(held, default=0)

    def has(self, rank: int) -> bool:
        """Whether a dump tells of the rank."""
        return rank in self.standing and rank not in self.empty


def read_dumps(engine: Engine, attempt: int) -> Dumps | None:
    """Read what importers wrote; None where there are no dumps."""
    found = Dumps()
    for row in engine.sql(query("dumps", attempt=attempt)).to_pylist():
        try:
            value = json.loads(row["value"])
        except ValueError:
            continue
        if not isinstance(value, dict):
            continue
        if row["name"] in ("group", "dump_group") and "id" in value:
            group = str(value["id"])
            found.members[group] = tuple(value.get("ranks") or ())
            found.names[group] = _name(value)
        elif row["name"] == "dump" and row["rank"] is not None:
            _take(found, row["rank"], value)
    if not found.standing:
        return None
    rows = engine.sql(query("dump_calls", attempt=attempt)).to_pylist()
    found.parts = [_part(row) for row in rows]
    return found


def _name(group: Mapping[str, Any]) -> str:
    name, said = str(group.get("name") or group["id"]), str(group.get("description") or "")
    return name if said in ("", "undefined", "default_pg") else f"{said} ({name})"


def _take(found: Dumps, rank: int, value: Mapping[str, Any]) -> None:
    groups = value.get("groups")
    found.standing[rank] = {
        group: Held(
            held.get("enqueued"),
            held.get("completed"),
            held.get("dumps") or 1,
            {int(seq): str(frame) for seq, frame in (held.get("sites") or {}).items()},
        )
        for group, held in (groups.items() if isinstance(groups, dict) else ())
    }
    found.files[rank] = str(value.get("file"))
    if value.get("frame"):
        found.frames[rank] = str(value["frame"])
    if value.get("written_ns"):
        found.written_ns[rank] = int(value["written_ns"])
    if not value.get("entries") and not found.standing[rank]:
        found.empty.add(rank)


def _part(row: Mapping[str, Any]) -> Part:
    told = {name: json.loads(text) for name, text in row["attributes"] or ()}
    return Part(
        row["rank"], row["collective_group"], row["collective_seq"], row["collective_op"],
        row["peer_rank"], row["start_ns"], row["is_open"], told.get("dumps", 1),
        told.get("frame"), bool(told.get("retired")), told.get("disagrees"), told.get("source"),
        _counts(told, "sent"), _counts(told, "received"),
    )  # fmt: skip


def _counts(told: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    counts = told.get(name)
    return None if counts is None else tuple(counts)
