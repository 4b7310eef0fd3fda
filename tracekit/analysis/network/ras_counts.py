"""Counts of launched collectives in answers of RAS: who is behind, and whether that lasts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.analysis.network.facts import Look

__all__ = ["Lag", "lags_of"]

_Comm = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lag:
    """A communicator whose ranks launched different numbers of an operation."""

    comm: _Comm
    op: str
    before: _Comm | None
    """The same communicator in the look before."""
    far: bool
    """Whether the two looks are known to be far enough apart, or nothing tells how far."""
    timed: bool

    @property
    def states(self) -> list[Mapping[str, Any]]:
        """Ranks that agree, the fewest operations first."""
        return sorted(self.comm["counts"][self.op], key=lambda state: state["value"])

    @property
    def most(self) -> int:
        """The highest count."""
        return int(self.states[-1]["value"])

    @property
    def least(self) -> int:
        """The lowest count."""
        return int(self.states[0]["value"])

    @property
    def size(self) -> int | None:
        """How many ranks the communicator has."""
        return self.comm.get("size")

    @property
    def name(self) -> str:
        """How it is called."""
        return str(self.comm.get("name") or self.comm.get("hash"))

    @property
    def behind_count(self) -> int:
        """How many ranks launched fewer than the most."""
        return sum(int(state["count"]) for state in self.states[:-1])

    @property
    def behind(self) -> list[int]:
        """The ranks that did, where all of them are listed."""
        listed = [rank for state in self.states[:-1] for rank in state["ranks"]]
        return sorted(listed) if len(listed) == self.behind_count else []

    @property
    def ahead(self) -> list[int]:
        """The ranks that launched the most, as far as they are listed."""
        return sorted(self.states[-1]["ranks"])

    @property
    def minority(self) -> bool:
        """Whether fewer ranks are behind than not."""
        return self.behind_count < int(self.states[-1]["count"])

    @property
    def text(self) -> str:
        """The counts as one line."""
        told = ", ".join(f"{state['count']} at {state['value']}" for state in self.states)
        return f"{self.op}: {told}"

    @property
    def crossed(self) -> str | None:
        """Another operation in which ranks that are behind here are the ones ahead."""
        here = set(self.behind)
        for op, states in self.comm["counts"].items():
            ordered = sorted(states, key=lambda state: state["value"])
            if op != self.op and len(ordered) > 1 and here & set(ordered[-1]["ranks"]):
                return str(op)
        return None

    @property
    def stuck(self) -> bool:
        """Whether nothing moved since the look before."""
        same = self.before is not None and _values(self.comm) == _values(self.before)
        return same and (self.far or not self.timed)

    @property
    def stalled(self) -> bool:
        """Whether those behind launched nothing since, while the others did."""
        if self.before is None or not self.far or not self.timed or not self.behind:
            return False
        earlier = sorted(self.before["counts"].get(self.op) or (), key=lambda state: state["value"])
        if not earlier or int(earlier[-1]["value"]) >= self.most or not self.minority:
            return False
        then = {rank: int(state["value"]) for state in earlier for rank in state["ranks"]}
        now = {rank: int(state["value"]) for state in self.states for rank in state["ranks"]}
        return all(then.get(rank) == now[rank] for rank in self.behind)

    def processes(self, ranks: Iterable[int]) -> list[Mapping[str, Any]]:
        """The processes of ranks, as far as they are listed."""
        wanted = set(ranks)
        return [one for one in self.comm.get("members") or () if one.get("rank") in wanted]

    def keys(self, ranks: Iterable[int]) -> list[tuple[str, int]]:
        """What the processes of ranks are known by in all communicators."""
        return [(one["host"], one["pid"]) for one in self.processes(ranks)]


def _values(comm: _Comm) -> dict[str, list[tuple[int, int]]]:
    """Every operation's counts: of text those that differ, of JSON all."""
    return {
        op: sorted((int(state["value"]), int(state["count"])) for state in states)
        for op, states in comm["counts"].items()
    }


def lags_of(looks: Sequence[Look], apart_s: float) -> list[Lag]:
    """The communicators of the newest look in which ranks differ, the largest first."""
    newest, before = looks[-1], looks[-2] if len(looks) > 1 else None
    earlier = {comm["hash"]: comm for comm in before.communicators} if before else {}
    gap = newest.gap_s(before)
    found = []
    for comm in newest.communicators:
        differing = [op for op, states in (comm.get("counts") or {}).items() if len(states) > 1]
        if not differing:
            continue
        op = max(differing, key=lambda op: _spread(comm["counts"][op]))
        far = gap is not None and gap >= apart_s
        found.append(Lag(comm, op, earlier.get(comm["hash"]), far, gap is not None))
    return sorted(found, key=lambda lag: -(lag.size or 0))


def _spread(states: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    values = [int(state["value"]) for state in states]
    return -min(int(state["count"]) for state in states), max(values) - min(values)
