"""What a process group is called in the tables, and how its calls are numbered."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters._patch import Watch
from tracekit.adapters.torch._guard import guarded
from tracekit.model import Collective, group_id
from tracekit.recorder import Recorder

__all__ = ["Group", "group_of"]

_told: WeakKeyDictionary[Recorder, set[str]] = WeakKeyDictionary()


class Group:
    """A process group: its id, the same on all members, its global ranks, its sequence numbers.

    Numbers are the backend's own, as in its logs and dumps. Where it has none, calls are counted
    here: the members make the same calls in the same order, whichever object makes them.
    """

    def __init__(self, process_group: Any) -> None:
        self.ranks: list[int] = list(dist.get_process_group_ranks(process_group))
        self.id = group_id(self.ranks, _ordinal(process_group, self.ranks))
        self.name = str(getattr(process_group, "group_name", "") or "")
        self.description = str(getattr(process_group, "group_desc", "") or "")
        self.backend = _backend_of(process_group)
        self._process_group = weakref.ref(process_group)
        self._counted = 0
        self.seen = 0  # the number of the last call that was seen
        self.beside = 0  # calls that the backend counted besides its collectives
        self._pairs: dict[tuple[int, int, int], Iterator[int]] = defaultdict(
            lambda: itertools.count(1)
        )
        self._expected = 0  # the last number before a message
        self._has_numbers = self._backend_number() is not None

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

    def last(self) -> int:
        """The number of the last call that was made."""
        if self._has_numbers:
            process_group = self._process_group()
            if process_group is not None:
                number: int = process_group._get_sequence_number_for_group()
                return number - self.beside
        return self._counted

    def next(self) -> int:
        """The number of the call that is made now."""
        if self._has_numbers:
            self.seen = self.last() + 1
        else:
            self.seen = self._counted = self._counted + 1
        return self.seen

    def apart(self) -> None:
        """The call made now has no number of the backend's, though it may count it."""
        if self._has_numbers:
            self._expected = self.last()

    def paired(self) -> None:
        """It is made. Gloo counts a send or receive on its two ranks as it counts collectives,
        and the members of the group would no longer agree on these."""
        if self._has_numbers:
            self.beside += self.last() - self._expected

    def pair(self, source: int, destination: int, tag: int = 0) -> int:
        """The number of a message between two global ranks, the same on both sides."""
        return next(self._pairs[source, destination, tag]) + (tag % (1 << 20) << 28)

    def tell(self) -> None:
        """Record the group as a fact, once in each run."""
        rec = recorder.current()
        if rec is None:
            return
        told = _told.setdefault(rec, set())
        if self.id not in told:
            told.add(self.id)
            value = {"id": self.id, "name": self.name, "ranks": self.ranks}
            if self.description:
                value["description"] = self.description
            if self.backend:
                value["backend"] = self.backend
            recorder.fact("group", value)

    @guarded("sequence numbers")
    def _backend_number(self) -> int | None:
        """The backend's number; None where it has none, which is no failure."""
        process_group = self._process_group()
        try:
            return int(process_group._get_sequence_number_for_group())  # type: ignore[union-attr]
        except (AttributeError, RuntimeError):
            return None


def _backend_of(process_group: Any) -> str:
    try:
        return str(dist.get_backend(process_group))
    except (RuntimeError, ValueError):  # a group that was made in another way
        return ""


_groups: Watch[Group] = Watch()


def group_of(process_group: Any) -> Group:
    """The one ``Group`` of a process group, which is held weakly."""
    return _groups.of(process_group, Group)


_default: weakref.ref[Any] | None = None
_worlds = 0


def _world_number() -> int:
    """How many default groups this process had before: each one numbers its calls from 1."""
    global _default, _worlds
    current = dist.group.WORLD
    if current is not None and (_default is None or _default() is not current):
        _worlds += _default is not None
        _default = weakref.ref(current)
    return _worlds


def _ordinal(process_group: Any, ranks: list[int]) -> int:
    """How many groups of the same ranks were made before this one.

    All members of a group make it in the same order relative to its twins.
    """
    before = _world_number() << 16
    world = getattr(dist.distributed_c10d, "_world", None)
    known = getattr(world, "pg_group_ranks", None) or {}
    twins = [other for other, members in known.items() if set(members) == set(ranks)]
    for place, other in enumerate(twins):
        if other is process_group or other == process_group:
            return before + place
    return before
