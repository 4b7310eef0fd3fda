"""Who was waited for in a collective: arrows from the last to those who waited, and lateness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model import DIRECTION_OF_OP, Direction

__all__ = ["Arrow", "Calls", "Late", "beside_median"]

Ints = npt.NDArray[np.int64]
_PAIRS = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Arrow:
    """A wait: from the span waited for, when it began, to the span that waited."""

    id: int
    source: int
    target: int
    """Rows of the spans."""
    time_ns: int


@dataclass(frozen=True, slots=True)
class Late:
    """How much later than the median of the other members a rank came."""

    row: int
    group: str
    ms: float


class Calls:
    """The collectives among the spans, each with the rows of its members.

    ``domains`` names the clock of each rank: between two clocks nobody is called late.
    """

    def __init__(
        self, columns: Mapping[str, Sequence[Any]], ends: Ints, domains: Mapping[int, str]
    ) -> None:
        self.ranks, self.starts, self.ends = columns["rank"], columns["start_ns"], ends
        self.sizes, self.peers = columns["group_size"], columns["peer_rank"]
        self.ops, self.groups = columns["collective_op"], columns["collective_group"]
        self.steps = columns["step"]
        self.domains = domains
        self.calls: dict[tuple[Any, ...], list[int]] = {}
        for row, (kind, name, seq) in enumerate(
            zip(columns["kind"], columns["name"], columns["collective_seq"], strict=True)
        ):
            # To wait for a call is no call of its own.
            if kind == "comm" and name != "wait" and seq is not None and self.groups[row]:
                self.calls.setdefault(self._key(row, seq), []).append(row)

    def _key(self, row: int, seq: int) -> tuple[Any, ...]:
        op, rank, peer = self.ops[row], self.ranks[row], self.peers[row]
        if op not in _PAIRS:
            return self.groups[row], seq, op
        return self.groups[row], seq, "p2p", *((rank, peer) if op == "send" else (peer, rank))

    def arrows(self, least_ns: int, at_most: int) -> tuple[list[Arrow], int]:
        """Arrows for the longest waits, by time; and how many waits are at least so long."""
        found = []
        for rows in self.calls.values():
            for source, target in self.pairs(rows):
                time = self.starts[source]
                waited = time - self.starts[target]
                both_there = self.ends[source] > time and self.ends[target] > time
                if waited >= max(1, least_ns) and both_there:
                    found.append((waited, time, source, target))
        kept = sorted(one[1:] for one in nlargest(at_most, found))
        return [Arrow(id_, s, t, time) for id_, (time, s, t) in enumerate(kept, 1)], len(found)

    def pairs(self, rows: list[int]) -> list[tuple[int, int]]:
        """Who waits for whom: pairs of the row that is waited for and one that may wait."""
        if len({self.ranks[row] for row in rows}) < max(2, len(rows)):
            return []  # alone, or a number used twice
        direction = DIRECTION_OF_OP.get(self.ops[rows[0]], Direction.UNKNOWN)
        roots = [row for row in rows if self.peers[row] == self.ranks[row]]
        pairs: list[tuple[int, int]] = []
        if direction is Direction.PAIR:
            sends = [row for row in rows if self.ops[row] == "send"]
            pairs = [(send, row) for send in sends for row in rows if self.ops[row] == "recv"]
        elif direction is Direction.FROM_ROOT and roots:
            pairs = [(roots[0], row) for row in rows if row != roots[0]]
        elif not self._whole(rows):
            pass  # the last one may be among those that are not there
        elif direction is Direction.ALL:
            last = max(rows, key=self.starts.__getitem__)
            pairs = [(last, row) for row in rows if row != last]
        elif direction is Direction.TO_ROOT and roots:
            members = [row for row in rows if row != roots[0]]
            pairs = [(max(members, key=self.starts.__getitem__), roots[0])]
        return [pair for pair in pairs if self._one_clock(pair)]

    def _whole(self, rows: Sequence[int]) -> bool:
        return self.sizes[rows[0]] == len(rows) and self._one_clock(rows)

    def _one_clock(self, rows: Sequence[int]) -> bool:
        return len({self.domains.get(self.ranks[row]) for row in rows}) == 1

    def lateness(self) -> Iterator[Late]:
        """How late the members came to what was most waited for, in each step and group.

        Only collectives in which all wait for the last one tell it.
        """
        chosen: dict[tuple[str, int | None], tuple[int, list[int]]] = {}
        for rows in self.calls.values():
            direction = DIRECTION_OF_OP.get(self.ops[rows[0]], Direction.UNKNOWN)
            alone = len({self.ranks[row] for row in rows}) < max(2, len(rows))
            if alone or direction is not Direction.ALL or not self._whole(rows):
                continue
            arrivals = [self.starts[row] for row in rows]
            waited, key = max(arrivals) - min(arrivals), (self.groups[rows[0]], self.steps[rows[0]])
            if key not in chosen or chosen[key][0] < waited:
                chosen[key] = waited, rows
        for (group, _), (_, rows) in chosen.items():
            first = self.starts[rows[0]]
            arrivals_ns = np.array([self.starts[row] - first for row in rows])
            for row, late in zip(rows, beside_median(arrivals_ns).tolist(), strict=True):
                yield Late(row, group, late / 1e6)


def beside_median(values: Ints) -> npt.NDArray[np.float64]:
    """Each value minus the median of the others."""
    order = np.argsort(values, kind="stable")
    ordered, position = values[order], np.empty(len(values), np.int64)
    position[order] = np.arange(len(values))
    others = len(values) - 1

    def other(place: int) -> Ints:
        """What stands at a place of the others of each."""
        found: Ints = ordered[place + (place >= position)]
        return found

    beside: npt.NDArray[np.float64] = values - (other((others - 1) // 2) + other(others // 2)) / 2
    return beside
