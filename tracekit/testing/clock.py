"""A clock that only moves when a test says so."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """Stands in for ``time.monotonic_ns``: call it for the time, ``advance`` it to move on."""

    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int = 0, ms: float = 0.0, s: float = 0.0) -> int:
        """Let so much time pass; returns the new time."""
        passed = ns + round(ms * 1e6) + round(s * 1e9)
        if passed < 0:
            raise ValueError("time does not run backwards")
        self.now_ns += passed
        return self.now_ns
