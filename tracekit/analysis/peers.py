"""Which ranks do the same work, so that they may be compared; and whether that can be told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracekit.analysis.facts import Facts
from tracekit.analysis.tables import Tables

__all__ = ["Peers", "find_peers"]


@dataclass(frozen=True, slots=True)
class Peers:
    """Sets of ranks that may be compared with each other; why not, where that is unknown."""

    sets: tuple[tuple[int, ...], ...]
    unknown: str | None = None
    """"roles" or "clocks" where ranks cannot be judged."""


def find_peers(tables: Tables, facts: Facts, aligned: bool) -> Peers:
    """Peers have the same role but for data parallelism; without roles, one kind of groups.

    Where nobody tells roles and ranks talk in several kinds of groups, they may do different
    work, and no rank is accused of having more of it.
    """
    if not aligned:
        return Peers((), "clocks")
    roles = {rank: facts.of(rank).identity.get("role") for rank in tables.ranks}
    if all(isinstance(role, Mapping) for role in roles.values()):
        return Peers(_same_but_dp(roles))
    groups = {
        members
        for group, members in _members(tables, facts).items()
        if len(members) > 1 and any(g == group for g, _ in tables.groups)
    }
    if not groups:
        return Peers((tables.ranks,))
    if sum(len(members) for members in groups) > len(set().union(*groups)):
        return Peers((), "roles")  # groups that overlap and are not the same
    alone = set(tables.ranks).difference(*groups)
    return Peers(tuple(sorted([*groups, *((rank,) for rank in alone)])))


def _members(tables: Tables, facts: Facts) -> dict[str, tuple[int, ...]]:
    """Who is in which group, of the ranks that were recorded."""
    here = set(tables.ranks)
    told = {g: tuple(sorted(here & set(ranks))) for g, ranks in facts.groups.items() if ranks}
    used = {group for group, _ in tables.groups}
    if len(used) == 1:
        return {group: told.get(group, tables.ranks) for group in used}
    return {**tables.members, **told}


def _same_but_dp(roles: Mapping[int, object]) -> tuple[tuple[int, ...], ...]:
    sets: dict[str, list[int]] = {}
    for rank, role in roles.items():
        assert isinstance(role, Mapping)
        key = json.dumps({k: v for k, v in role.items() if k != "dp"}, sort_keys=True)
        sets.setdefault(key, []).append(rank)
    return tuple(sorted(tuple(ranks) for ranks in sets.values()))


def set_of(rank: int, sets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The peers of a rank, itself included."""
    return next((ranks for ranks in sets if rank in ranks), (rank,))
