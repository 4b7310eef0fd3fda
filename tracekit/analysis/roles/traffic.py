"""Who communicates with whom, and how: what roles follow from where nobody tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = ["Channel", "Link", "Traffic", "read_traffic"]

_SKIPPED, _SAMPLED = 3, 8
"""Steps before those in which the places of calls are looked at, and how many these are."""
_MESSAGES = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Channel:
    """One operation of one group on one rank."""

    rank: int
    group: str
    op: str
    calls: int
    bytes: int
    """The most that one call carries; this and what follows is of some steps only."""
    group_size: int
    in_forward: bool
    in_backward: bool


@dataclass(frozen=True, slots=True)
class Link:
    """What one rank does with another that it sends to or receives from."""

    rank: int
    peer: int
    sends_first: bool
    """It sends before it gets anything, in each step."""
    gets_first: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """All communication inside of steps."""

    channels: tuple[Channel, ...] = ()
    links: tuple[Link, ...] = ()
    told: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The members of groups, as they were recorded."""
    ranks: tuple[int, ...] = ()
    steps: int = 0

    def members(self) -> dict[str, tuple[int, ...]]:
        """Which of the recorded ranks are in each group that collectives ran in."""
        seen: dict[str, set[int]] = {}
        for channel in self.channels:
            if channel.op not in _MESSAGES:
                seen.setdefault(channel.group, set()).add(channel.rank)
        here = set(self.ranks)
        return {
            group: tuple(sorted(here & set(self.told[group]) if self.told.get(group) else ranks))
            for group, ranks in sorted(seen.items())
        }


def read_traffic(engine: Engine, seen: Overview, facts: Facts) -> Traffic:
    """Look at the communication of the attempt."""
    rows = engine.sql(query("channels", attempt=seen.attempt)).to_pylist()
    messages = any(row["op"] in _MESSAGES for row in rows)
    first = (seen.first_step or 0) + min(_SKIPPED, seen.steps // 2)
    where = {"attempt": seen.attempt, "first": first, "last": first + _SAMPLED - 1}
    several = messages or len({row["grp"] for row in rows}) > 1
    places = engine.sql(query("places", **where)).to_pylist() if several else []
    of = {(row["rank"], row["grp"], row["op"]): row for row in places}
    return Traffic(
        tuple(_channel(row, of.get((row["rank"], row["grp"], row["op"]), {})) for row in rows),
        _links(engine, where) if messages else (),
        facts.groups,
        seen.ranks,
        seen.steps,
    )


def _channel(row: Mapping[str, Any], place: Mapping[str, Any]) -> Channel:
    return Channel(
        row["rank"], row["grp"], row["op"], row["calls"],
        place.get("bytes") or 0, place.get("group_size") or 0,
        place.get("in_forward", 0) > 0, place.get("in_backward", 0) > 0,
    )  # fmt: skip


def _links(engine: Engine, where: Mapping[str, int]) -> tuple[Link, ...]:
    return tuple(
        Link(
            row["rank"], row["peer"],
            row["sends_first"] == row["steps"], row["gets_first"] == row["steps"],
        )
        for row in engine.sql(query("messages", **where)).to_pylist()
    )  # fmt: skip
