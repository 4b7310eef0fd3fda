"""Roles that nobody told, where they follow for sure from who communicates with whom.

Messages make stages: who gets activations before it sends gradients back is a later stage. Groups
whose members no pipeline connects are inside of a stage: a collective that reduces in the forward
carries activations and ties its ranks to one unit; others carry gradients or parameters, and their
ranks are replicas. It follows only where all ranks of a stage communicate alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tracekit.analysis.roles.traffic import Channel, Link, Traffic

__all__ = ["infer_peers"]

Sets = tuple[tuple[int, ...], ...]

_REDUCING = ("all_reduce", "reduce_scatter", "all_to_all")
"""What carries activations when it runs in a forward; parameters are gathered there."""
_ROOTED = ("broadcast", "scatter", "reduce", "gather")
_SMALL_TALK = ("barrier", "all_gather_object", "broadcast_object_list", "gather_object",
               "scatter_object_list")  # fmt: skip
"""What says nothing about the work of ranks."""


def infer_peers(ranks: tuple[int, ...], traffic: Traffic) -> tuple[Sets, Sets, Sets] | None:
    """Sets of peers, units and pipeline stages; None where that does not follow for sure."""
    members = {
        group: inside
        for group, inside in traffic.members().items()
        if len(inside) > 1 and not _says_nothing(group, traffic.channels)
    }
    if not traffic.links:
        apart = set(members.values())
        if not apart:
            return (ranks,), (), ()
        if sum(map(len, apart)) == len(set().union(*apart)):  # one kind of groups
            alone = set(ranks).difference(*apart)
            return tuple(sorted([*apart, *((rank,) for rank in alone)])), (), ()
    pipelines = _pipelines(ranks, traffic)
    if pipelines is None:
        return None
    local = {
        group: inside
        for group, inside in members.items()
        if not any(len(set(inside) & set(line)) > 1 for line in pipelines)
    }
    if any(_is_rooted(group, traffic.channels) for group in local):
        return None  # what a root sends on may be anything, also what a stage hands to the next
    stages = components(ranks, local.values())
    alike = _alike(stages, traffic, local)
    whole = all(len(set(stage) & set(line)) == 1 for stage in stages for line in pipelines)
    if not alike or (traffic.links and not whole) or (not traffic.links and len(stages) > 1):
        return None
    tied = {c.group for c in traffic.channels if c.in_forward and c.op in _REDUCING}
    units = components(ranks, (local[group] for group in tied & set(local)))
    replicas = [
        inside
        for group, inside in local.items()
        if group not in tied and not any(len(set(inside) & set(unit)) > 1 for unit in units)
    ]
    sets = components(ranks, replicas)
    return (
        sets,
        units if any(len(unit) > 1 for unit in units) else (),
        _in_order(stages, traffic.links) if len(stages) > 1 else (),
    )


def components(ranks: Iterable[int], links: Iterable[Iterable[int]]) -> Sets:
    """The sets of ranks that links connect, also over others."""
    of = {rank: {rank} for rank in ranks}
    for link in links:
        together = set().union(*(of[rank] for rank in link if rank in of))
        for rank in together:
            of[rank] = together
    return tuple(sorted({tuple(sorted(together)) for together in of.values()}))


def _says_nothing(group: str, channels: Iterable[Channel]) -> bool:
    return all(c.op in _SMALL_TALK for c in channels if c.group == group)


def _is_rooted(group: str, channels: Iterable[Channel]) -> bool:
    return all(c.op in (*_ROOTED, *_SMALL_TALK) for c in channels if c.group == group)


def _pipelines(ranks: tuple[int, ...], traffic: Traffic) -> Sets | None:
    """The ranks that messages connect, a pipeline each; None where they are something else.

    One of two ranks of a pipeline sends first in every step, the other gets first, and both do
    it between their phases. Around a ring both send first, or do it inside of a layer.
    """
    if any(c.op in ("send", "recv") and (c.in_forward or c.in_backward) for c in traffic.channels):
        return None
    known = {(link.rank, link.peer): link for link in traffic.links}
    for (rank, peer), link in known.items():
        other = known.get((peer, rank))
        if other is None or not (
            (link.sends_first and other.gets_first) or (link.gets_first and other.sends_first)
        ):
            return None
    lines = components(ranks, known)
    return lines if len({len(line) for line in lines}) == 1 else None


def _alike(stages: Sets, traffic: Traffic, local: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether all ranks of each stage communicate alike, step by step."""
    steps = max(1, traffic.steps)
    shapes: dict[int, Counter[object]] = {rank: Counter() for rank in traffic.ranks}
    for c in traffic.channels:
        often = round(c.calls / steps) or "now and then"
        gradients = c.group in local and not c.in_forward
        nbytes = c.bytes if gradients else None
        shapes[c.rank][c.group_size, c.op, c.in_forward, often, nbytes] += 1
    return all(len({frozenset(shapes[r].items()) for r in stage}) == 1 for stage in stages)


def _in_order(stages: Sets, links: Iterable[Link]) -> Sets:
    """The first stage first: each behind all that send to it, unless they go around."""
    stage_of = {rank: number for number, stage in enumerate(stages) for rank in stage}
    before: dict[int, set[int]] = {number: set() for number in range(len(stages))}
    for link in links:
        if link.gets_first:
            before[stage_of[link.rank]].add(stage_of[link.peer])
    order: list[int] = []
    while len(order) < len(stages):
        left = [number for number in before if number not in order]
        ready = [number for number in left if before[number] <= set(order)]
        order.append((ready or left)[0])
    return tuple(stages[number] for number in order)
