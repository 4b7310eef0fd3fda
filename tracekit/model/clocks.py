"""What puts the times of one clock on another."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Correction"]


@dataclass(frozen=True, slots=True)
class Correction:
    """What to add to the times of a clock from one time on, until another; nanoseconds."""

    from_ns: int
    until_ns: int
    base_ns: int
    offset_ns: int
    drift: float
    """Nanoseconds a nanosecond after ``base_ns``."""
    error_ns: float

    def at(self, time_ns: int) -> int:
        """What to add at a time."""
        return self.offset_ns + int(self.drift * (time_ns - self.base_ns))
