"""The table of what is known of log lines, ``patterns.json``: one row a message.

A row has a name, hints (a line without one of them cannot match), a pattern, the cause class, the
name of the event it becomes, and its role: what the line says about the rank that wrote it.
A second part knows what a rank was busy with, from the last line that it wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["ROLES", "Hit", "Row", "Table", "table"]

ROLES = frozenset(
    """
    benign cancelled cause effect elastic kernel kernel_note logged memory mismatch mismatch_rest
    missing note oom_event options restart scheduler start status task_end wait world
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Row:
    """One message."""

    name: str
    cause: str
    role: str
    event: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    more: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that is such a message."""

    row: Row
    said: Mapping[str, str | None]
    """The named parts of the pattern."""


class Table:
    """All rows; finds the first one that a line matches."""

    def __init__(self, told: Mapping[str, list[dict[str, Any]]]) -> None:
        self.rows = tuple(_row(row) for row in told["messages"])
        self.doings = tuple((one["name"], re.compile(one["pattern"])) for one in told["doing"])
        hints = {hint for row in self.rows for hint in row.hints}
        self._any = re.compile("|".join(re.escape(hint) for hint in sorted(hints, key=len)))

    def find(self, body: str) -> Hit | None:
        """The first row whose pattern is in a line; most lines cost one search for hints."""
        if self._any.search(body) is None:
            return None
        for row in self.rows:
            if any(hint in body for hint in row.hints) and (match := row.pattern.search(body)):
                return Hit(row, match.groupdict())
        return None

    def hints_like(self, alike: bytes) -> tuple[bytes, ...]:
        """All hints, their bytes translated by ``alike``."""
        hints = {hint.encode().translate(alike) for row in self.rows for hint in row.hints}
        return tuple(sorted(hints, key=len))

    def doing(self, body: str) -> str | None:
        """What a rank was busy with that wrote this last, if the line tells."""
        text = body[:400]
        return next((name for name, pattern in self.doings if pattern.search(text)), None)


def _row(told: dict[str, Any]) -> Row:
    known = ("name", "class", "role", "event", "hints", "pattern")
    more = {key: value for key, value in told.items() if key not in known}
    return Row(
        told["name"],
        told["class"],
        told["role"],
        told["event"],
        tuple(told["hints"]),
        re.compile(told["pattern"]),
        more,
    )


@lru_cache(maxsize=1)
def table() -> Table:
    """The table that comes with tracekit."""
    return Table(json.loads(Path(__file__).with_name("patterns.json").read_text("utf-8")))
