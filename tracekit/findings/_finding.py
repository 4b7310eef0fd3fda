"""A verdict as a value: what was found, how sure, what it cost, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tracekit.findings._ids import IDS

__all__ = ["Certainty", "Finding", "Severity"]


class Severity(str, Enum):
    """How much a finding matters; ordered by ``weight``."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def weight(self) -> int:
        """0 for info up to 2 for critical."""
        return list(Severity).index(self)


class Certainty(str, Enum):
    """How sure a finding is."""

    PROVEN = "proven"
    """The evidence leaves no other reading."""
    LIKELY = "likely"
    """Statistics or an incomplete record speak for it."""
    CANNOT_TELL = "cannot_tell"
    """Something is there, but the record does not decide what."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict; the four last fields are those of a straggler.

    ``steps`` is the first and the last step it was seen in. ``lost_ms`` is the time the job lost
    by it, over all steps. ``evidence`` holds plain values: what the verdict rests on.
    """

    id: str
    severity: Severity
    certainty: Certainty
    title: str
    ranks: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None
    lost_ms: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    rules: tuple[str, ...] | None = None
    imposed_wait_ms: float | None = None
    p: float | None = None
    cause: str | None = None

    def __post_init__(self) -> None:
        if self.id not in IDS:
            raise ValueError(f"{self.id!r} is not in the catalogue of findings")
