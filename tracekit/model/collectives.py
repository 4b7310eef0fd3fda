"""Who waits for whom in which collective, and how a group is named the same on every rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

__all__ = ["DIRECTION_OF_OP", "Collective", "Direction", "direction", "group_id"]


class Direction(str, Enum):
    """Which members of a collective are blocked by which others."""

    ALL = "all"
    """Every member waits for the last one; only these serve to align clocks."""
    FROM_ROOT = "from_root"
    """Receivers wait for the root."""
    TO_ROOT = "to_root"
    """The root waits for the members."""
    PAIR = "pair"
    """A receive waits for its send."""
    UNKNOWN = "unknown"
    """Nobody is accused on its account."""


DIRECTION_OF_OP: dict[str, Direction] = {
    "all_gather": Direction.ALL,
    "all_reduce": Direction.ALL,
    "all_to_all": Direction.ALL,
    "barrier": Direction.ALL,
    "broadcast": Direction.FROM_ROOT,
    "gather": Direction.TO_ROOT,
    "recv": Direction.PAIR,
    "reduce": Direction.TO_ROOT,
    "reduce_scatter": Direction.ALL,
    "scatter": Direction.FROM_ROOT,
    "send": Direction.PAIR,
}


def direction(op: str) -> Direction:
    """The direction of an operation's waits."""
    return DIRECTION_OF_OP.get(op, Direction.UNKNOWN)


def group_id(ranks: Iterable[int], ordinal: int = 0) -> str:
    """Name a process group so that all its members find the same name without talking.

    The name is a hash of the sorted global ranks and of how many groups with these members
    were made before (``ordinal``); frameworks' own names may differ from rank to rank.
    """
    members = ",".join(str(rank) for rank in sorted(ranks))
    return blake2b(f"{members}#{ordinal}".encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Collective:
    """What is constant over the calls of one operation in one group.

    ``peer`` is the global rank of the root of broadcast, scatter, reduce and gather, or of
    the other side of a send or receive.
    """

    op: str
    group: str
    group_size: int
    dtype: str | None = None
    peer: int | None = None
