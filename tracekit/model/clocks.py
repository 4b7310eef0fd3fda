"""What puts the times of one clock on another."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic_ns, time_ns

__all__ = ["Correction", "offset_now"]


def offset_now(readings: int = 5) -> int:
    """Unix minus monotonic time, in nanoseconds.

    Of several readings it is the one with the least time between its two clocks: who is put aside
    between them would be wrong by as much.
    """
    taken = ((monotonic_ns(), time_ns(), monotonic_ns()) for _ in range(readings))
    return min((after - before, wall - (before + after) // 2) for before, wall, after in taken)[1]


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
