"""What was found of a run, and what of it could not be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Attempt", "Coverage", "Duplicate", "Elsewhere"]


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
