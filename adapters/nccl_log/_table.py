"""What a message of NCCL means: looked up in ``messages.json``, text by text, never by patterns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = ["Meaning", "meaning_of_info", "meaning_of_warning", "meanings"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """A row of the table."""

    match: tuple[bytes, ...]
    place: tuple[str, ...]
    """What must stand in the place that the message is printed from."""
    cause: str | None
    role: str
    level: str
    peer: bool = False
    recovers: bool = False
    """Whether it says that the process goes on without what failed."""
    final: bool = False
    """Whether it says that it does not, after all."""
    since: str | None = None
    until: str | None = None
    source: str | None = None

    def fits(self, text: bytes, place: str) -> bool:
        """Whether all its texts are there."""
        return all(part in text for part in self.match) and all(
            part in place for part in self.place
        )


@lru_cache(maxsize=1)
def meanings() -> tuple[Meaning, ...]:
    """All rows, in the order in which they are tried."""
    text = files(__package__).joinpath("messages.json").read_text(encoding="utf-8")
    return tuple(_meaning(row) for row in json.loads(text)["messages"])


def _meaning(row: Mapping[str, object]) -> Meaning:
    parts = row["match"]
    assert isinstance(parts, list)
    optional = {
        name: str(row[name]) if row.get(name) else None for name in ("since", "until", "source")
    }
    return Meaning(
        tuple(part.encode() for part in parts if not part.startswith("@")),
        tuple(part[1:] for part in parts if part.startswith("@")),
        None if row["class"] is None else str(row["class"]),
        str(row["role"]),
        str(row.get("level", "warn")),
        bool(row.get("peer")),
        bool(row.get("recovers")),
        bool(row.get("final")),
        **optional,
    )


def meaning_of_warning(text: bytes, place: str) -> Meaning | None:
    """What a warning means; None for one that the table does not know."""
    return next((one for one in _levels()[0] if one.fits(text, place)), None)


def meaning_of_info(text: bytes) -> Meaning | None:
    """What a line of information means, where it is one that the table has."""
    return next((one for one in _levels()[1] if one.fits(text, "")), None)


@lru_cache(maxsize=1)
def _levels() -> tuple[tuple[Meaning, ...], tuple[Meaning, ...]]:
    return (
        tuple(one for one in meanings() if one.level in ("warn", "any")),
        tuple(one for one in meanings() if one.level in ("info", "any")),
    )
