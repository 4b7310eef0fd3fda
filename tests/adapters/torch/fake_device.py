"""A device that is made up: its stream runs what the host asked for a while later."""

from __future__ import annotations

from typing import Any

LAG_NS = 300_000
NEVER = 1 << 62


class Time:
    """The host's clock, which moves a microsecond with each look at it."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


class Event:
    def __init__(self, time: Time) -> None:
        self.time = time
        self.happens = NEVER

    def query(self) -> bool:
        return self.happens <= self.time()

    def elapsed_time(self, end_event: Event) -> float:
        assert self.query()
        assert end_event.query()
        return (end_event.happens - self.happens) / 1e6


class FakeDevice:
    """Runs what is on its stream ``LAG_NS`` after the host asked for it."""

    name = "fake:0"

    def __init__(self, time: Time) -> None:
        self.time = time
        self.events = 0
        self.captures = False
        self.stuck = False
        self.allocated = 2 << 20

    def event(self) -> Event:
        self.events += 1
        return Event(self.time)

    def record(self, event: Any) -> int:
        event.happens = NEVER if self.stuck else self.time() + LAG_NS
        return 7

    def record_aside(self, event: Any) -> None:
        event.happens = self.time()

    def capturing(self) -> bool:
        return self.captures

    def memory(self) -> tuple[int, int, int] | None:
        return self.allocated, 3 << 20, 4 << 20

    def describe(self) -> dict[str, Any]:
        return {"name": "made up"}
