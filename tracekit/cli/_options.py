"""Options that several sub-commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["EngineName", "FailOn", "Format", "parse_steps", "parse_thresholds"]


class Format(str, Enum):
    """How a result is printed."""

    text = "text"
    json = "json"


class FailOn(str, Enum):
    """From which severity on findings make the exit code 1."""

    warning = "warning"
    critical = "critical"


class EngineName(str, Enum):
    """What answers the SQL."""

    duckdb = "duckdb"


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """Read ``A:B``: from step A to step B, both included; either may be left out."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None or text == ":":
        raise UsageError(f"--steps {text}: say from which to which step, as in 10:50, 10: or :50")
    first, last = (int(number) if number else None for number in match.groups())
    if first is not None and last is not None and first > last:
        raise UsageError(f"--steps {text}: the first step comes after the last")
    return first, last


def parse_thresholds(texts: Sequence[str], defaults: DataclassInstance) -> dict[str, Any]:
    """Read ``NAME=VALUE`` for fields of a dataclass of numbers, with the type of the default."""
    known = {f.name: f.default for f in fields(defaults) if isinstance(f.default, (int, float))}
    chosen: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known:
            raise UsageError(f"--threshold {text}: the thresholds are {', '.join(sorted(known))}")
        try:
            chosen[name] = type(known[name])(value)
        except ValueError:
            kind = "an integer" if isinstance(known[name], int) else "a number"
            raise UsageError(f"--threshold {text}: {name} is {kind}") from None
    return chosen
