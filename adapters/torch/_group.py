"""What a process group is called in the tables, and how its calls are numbered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from tracekit import recorder
from tracekit.model import Collective, group_id
from tracekit.recorder import Recorder

__all__ = ["Group"]

_counters: WeakKeyDictionary[Recorder, dict[tuple[str, str], Iterator[int]]] = WeakKeyDictionary()
_told: WeakKeyDictionary[Recorder, set[str]] = WeakKeyDictionary()


class Group:
    """A process group: its id, the same on all members, its global ranks, its sequence numbers."""

    def __init__(self, process_group: Any, rec: Recorder) -> None:
        self.ranks: list[int] = list(dist.get_process_group_ranks(process_group))
        self.id = group_id(self.ranks, _ordinal(process_group, self.ranks))
        self.name = str(getattr(process_group, "group_name", "") or "")
        self._recorder = rec

    @property
    def size(self) -> int:
        """How many ranks are in it."""
        return len(self.ranks)

    @property
    def lane(self) -> str:
        """The lane of its asynchronous communication."""
        return f"group:{self.id}"

    def collective(self, op: str, dtype: str | None = None, root: int | None = None) -> Collective:
        """An operation in this group; ``root`` is a rank within the group."""
        peer = None if root is None else self.ranks[root]
        return Collective(op, self.id, self.size, dtype, peer)

    def sequence(self, op: str) -> Iterator[int]:
        """Numbers the calls of an operation from 1 on.

        All traced objects of a group share one counter for each operation: the members make
        the same calls in the same order, whichever object makes them.
        """
        counters = _counters.setdefault(self._recorder, {})
        return counters.setdefault((self.id, op), itertools.count(1))

    def tell(self) -> None:
        """Record the group as a fact, once."""
        told = _told.setdefault(self._recorder, set())
        if self.id not in told:
            told.add(self.id)
            recorder.fact("group", {"id": self.id, "name": self.name, "ranks": self.ranks})


def _ordinal(process_group: Any, ranks: list[int]) -> int:
    """How many groups of the same ranks were made before this one.

    All members of a group make it in the same order relative to its twins.
    """
    world = getattr(dist.distributed_c10d, "_world", None)
    known = getattr(world, "pg_group_ranks", None) or {}
    twins = [other for other, members in known.items() if set(members) == set(ranks)]
    for place, other in enumerate(twins):
        if other is process_group or other == process_group:
            return place
    return 0
