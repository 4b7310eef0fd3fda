"""Which ranks do the same work, so that they may be compared; and whether that can be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.roles.inference import infer_peers
from tracekit.analysis.roles.traffic import Traffic

__all__ = ["Peers", "find_peers", "set_of"]

Sets = tuple[tuple[int, ...], ...]

_TIED = ("tp", "cp", "sp", "ep")
"""Parts of a role whose ranks wait for each other in every layer."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Sets of ranks that may be compared with each other; why not, where that is unknown."""

    sets: Sets
    unknown: str | None = None
    """"roles" or "clocks" where ranks cannot be judged."""
    units: Sets = ()
    """Ranks that collectives of every layer tie together, where there are such."""
    stages: Sets = ()
    """The ranks of each pipeline stage, the first stage first; empty without a pipeline."""
    told: bool = False
    """Whether somebody said so; else it follows from who communicates with whom."""
    tied: tuple[str, ...] = ()
    """The groups inside of units."""
    replicas: bool = True
    """Whether each rank of a set has the whole of what its peers have; else they share it."""


def find_peers(ranks: tuple[int, ...], traffic: Traffic, facts: Facts, aligned: bool) -> Peers:
    """Peers have the same role but for data parallelism; roles are told, or follow from traffic.

    Where nobody tells roles and they do not follow for sure, ranks may do different work, and
    no rank is accused of having more of it.
    """
    if not aligned:
        return Peers((), "clocks")
    roles = {rank: facts.of(rank).role for rank in ranks}
    if all(roles.values()) and _tells_apart(roles, facts):
        sets, units, stages = _told(roles)
    else:
        inferred = infer_peers(ranks, traffic)
        if inferred is None:
            return Peers((), "roles")
        roles = {}
        sets, units, stages = inferred
    shared = bool(units) and all(len(peers) == 1 for peers in sets)
    if shared:
        sets, units = units, ()  # no replica to compare with: the ranks of a unit, among themselves
    members = traffic.members()
    tied = tuple(
        group
        for group, inside in members.items()
        if len(inside) > 1 and any(set(inside) <= set(unit) for unit in units)
    )
    return Peers(sets, None, units, stages, bool(roles), tied, not shared)


def _tells_apart(roles: Mapping[int, Mapping[str, int]], facts: Facts) -> bool:
    """Whether roles are whole: no two ranks have the same, unless the user says so."""
    if any(facts.of(rank).role_source == "user" for rank in roles):
        return True
    return len({tuple(sorted(role.items())) for role in roles.values()}) == len(roles)


def _told(roles: Mapping[int, Mapping[str, int]]) -> tuple[Sets, Sets, Sets]:
    """Peers, units and stages from the coordinates of each rank."""
    sets = _equal({rank: _without(role, ("dp",)) for rank, role in roles.items()})
    replica = {
        rank: place
        for peers in sets
        for place, rank in enumerate(sorted(peers, key=lambda r: (roles[r].get("dp", 0), r)))
    }
    units = _equal({r: (*_without(role, ("dp", *_TIED)), replica[r]) for r, role in roles.items()})
    by_stage: dict[int, list[int]] = {}
    for rank, role in roles.items():
        by_stage.setdefault(role.get("pp", 0), []).append(rank)
    stages = tuple(tuple(ranks) for _, ranks in sorted(by_stage.items()))
    return (
        sets,
        units if any(len(unit) > 1 for unit in units) else (),
        stages if len(stages) > 1 else (),
    )


def _without(role: Mapping[str, int], dimensions: Iterable[str]) -> tuple[object, ...]:
    return tuple(sorted(item for item in role.items() if item[0] not in dimensions))


def _equal(keys: Mapping[int, object]) -> Sets:
    """The ranks of each key."""
    found: dict[object, list[int]] = {}
    for rank, key in keys.items():
        found.setdefault(key, []).append(rank)
    return tuple(sorted(tuple(ranks) for ranks in found.values()))


def set_of(rank: int, sets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The peers of a rank, itself included."""
    return next((ranks for ranks in sets if rank in ranks), (rank,))
