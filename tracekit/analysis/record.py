"""What the detectors that rest on facts and events look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.analysis.basis.ends import End
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.options import Options
from tracekit.analysis.roles.peers import Peers
from tracekit.dataset.engine import Engine
from tracekit.findings.result import CoverageSummary, RunSummary

__all__ = ["Record", "number", "text_of"]


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt of a run as its ranks told it."""

    engine: Engine
    facts: Facts
    ends: Mapping[int, End]
    peers: Peers
    run: RunSummary
    coverage: CoverageSummary
    shifts: Mapping[int, int] = field(default_factory=dict)
    """By how many steps each rank counts ahead of the others."""
    communications: int = 0
    """How many calls between ranks were recorded."""
    where: str = "RUN"
    options: Options = field(default_factory=Options)

    @property
    def attempt(self) -> int:
        """The attempt that is looked at."""
        return self.run.attempt

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of which something was recorded."""
        return self.run.ranks

    def apart(self, rank: int, other: int) -> bool:
        """Whether two ranks run on different machines, by the names of hosts and their boots."""
        one, two = self.facts.of(rank), self.facts.of(other)
        boots = {of.identity.get("boot_id") for of in (one, two)} - {None, ""}
        return one.host != two.host or len(boots) > 1


def number(value: Any) -> int | None:
    """A whole number as it was told; None where it is something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text_of(value: Any) -> str:
    """A text as it was told, one short line; empty where it is something else."""
    return " ".join(value.split())[:200] if isinstance(value, str) else ""
