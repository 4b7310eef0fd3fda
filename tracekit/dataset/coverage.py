"""What was found of a run, and what of it could not be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["Attempt", "Coverage", "Duplicate", "Elsewhere", "LiveExport"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run: how many ranks it should have, and which were found."""

    number: int
    world_size: int
    ranks: tuple[int, ...]

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of which there is neither a file nor a journal."""
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks)))


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Several processes that were one rank of one attempt; the first stem is analyzed."""

    attempt: int
    rank: int
    stems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A rank whose journal lies on another machine."""

    attempt: int
    rank: int
    host: str
    path: str


@dataclass(slots=True)
class LiveExport:
    """What became of the steps that an agent was to export while they happened."""

    attempt: int
    endpoint: str
    rule: str = ""
    """By which the steps were chosen."""
    spans: int = 0
    """Taken by the server, those it rejected afterwards included."""
    rejected: int = 0
    refused: int = 0
    """In requests that the server refused for good."""
    steps: int = 0
    left_steps: int = 0
    left_spans: int = 0
    """Not sent before the end."""
    folded: int = 0
    finished: bool = False
    """Whether all that is left was counted."""
    message: str = ""

    @classmethod
    def read(cls, attempt: int, told: Mapping[str, Any]) -> LiveExport:
        """What an agent wrote down; what has another form than expected is left out."""
        counts = {f.name: type(f.default) for f in fields(cls) if f.default is not MISSING}
        fitting = {
            name: told[name] for name, kind in counts.items() if type(told.get(name)) is kind
        }
        return cls(attempt, str(told.get("endpoint", "?")), **fitting)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was found, and what of it could not be used."""

    files: int = 0
    skipped: tuple[tuple[Path, str], ...] = ()
    dropped_spans: int = 0
    open_spans: int = 0
    torn_slots: int = 0
    missing_ranks: tuple[int, ...] = ()
    """Of the last attempt."""
    duplicate_ranks: tuple[Duplicate, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    exports: tuple[LiveExport, ...] = ()
