"""Noticing that a rank is stuck, and keeping what it was doing: two stacks, 5 s apart.

The rank is also asked for the last calls of its framework, once with stacks, once more after a
minute: two looks show what does not move, and the first is there before a watchdog ends the job.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tracekit.agent._process import ask_for_stacks, look_at
from tracekit.dataset.stacks import parse_stacks

__all__ = ["ASKED_EVERY_NS", "LOOKS", "QUESTIONS", "Vitals", "Watch"]

LOOKS = 2
"""How often the stacks of one stall are taken."""
QUESTIONS = 2
"""How often a rank is asked for its last calls in one stall."""
ASKED_EVERY_NS = 60_000_000_000
"""At most so often: to answer costs the job tens of milliseconds."""
_BETWEEN_LOOKS_NS = 5_000_000_000
_STALL_NS = 10_000_000_000
_START_UP_NS = 60_000_000_000
_TIMES_MEDIAN = 5
_FEWEST_STEPS = 3
_ANSWER_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the head of a live journal says about progress; monotonic nanoseconds.

    ``step_start`` is when the open step began, None between steps; ``step_times`` tells how long
    the newest steps took.
    """

    started: int
    step_start: int | None
    heartbeat: int
    step_times: Callable[[], Sequence[int]]


@dataclass(slots=True)
class Watch:
    """The watch over one rank; ``look`` is called every second or so.

    A step is stalled after 5 × the median step and at least ``stall_ns``; while too few steps
    have ended to know a median, after ``start_up_ns``.
    """

    pid: int
    signal_number: int | None
    stack_file: Path | None
    out: Path
    ask: Callable[[bool], None] = lambda stacks: None
    """Asks the rank for its last calls, with stacks or without; may raise ``OSError``."""
    stall_ns: int = _STALL_NS
    start_up_ns: int = _START_UP_NS
    _stalled_since: int | None = None
    _looked: list[int] = field(default_factory=list)
    _found: list[dict[str, Any]] = field(default_factory=list)
    _read_to: int = 0
    _questions: int = 0
    _asked_at: float = -math.inf

    def look(self, vitals: Vitals, now: int, unix_offset_ns: int) -> bool:
        """Take the stacks when the rank is stalled; True when this look took them."""
        since = vitals.started if vitals.step_start is None else vitals.step_start
        if since != self._stalled_since:
            if now - since < self._patience(vitals, now - since):
                return False
            self._stalled_since = since
            self._looked.clear()
            self._questions = 0
        self._ask(now)
        if len(self._looked) >= LOOKS:
            return False
        if self._looked and now - self._looked[-1] < _BETWEEN_LOOKS_NS:
            return False
        self._looked.append(now)
        self._found.append(self._take(vitals, now, unix_offset_ns))
        self._write()
        return True

    def _patience(self, vitals: Vitals, waited_ns: int) -> float:
        """How long to wait; the median is asked for only when a shorter wait is over."""
        if waited_ns < min(self.stall_ns, self.start_up_ns):
            return math.inf
        times = vitals.step_times()
        if len(times) < _FEWEST_STEPS:
            return self.start_up_ns
        if vitals.step_start is None:
            return math.inf  # between steps, or training is over
        return max(_TIMES_MEDIAN * median(times), self.stall_ns)

    def _ask(self, now: int) -> None:
        if self._questions < QUESTIONS and now - self._asked_at >= ASKED_EVERY_NS:
            with contextlib.suppress(OSError):
                self.ask(self._questions == 0)
            self._questions += 1
            self._asked_at = now

    def _take(self, vitals: Vitals, now: int, unix_offset_ns: int) -> dict[str, Any]:
        state = look_at(self.pid)
        threads: list[dict[str, Any]] = []
        if self.signal_number and self.stack_file and state["state"] not in ("T", "t"):
            threads = self._stacks()
        return {
            "time_ns": now + unix_offset_ns,
            "heartbeat_age_ns": now - vitals.heartbeat,
            "threads": threads,
            **state,
        }

    def _stacks(self) -> list[dict[str, Any]]:
        assert self.stack_file is not None
        assert self.signal_number is not None
        with contextlib.suppress(OSError):
            self._read_to = self.stack_file.stat().st_size
        if not ask_for_stacks(self.pid, self.signal_number):
            return []
        before, deadline = -1, time.monotonic() + _ANSWER_WITHIN_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                size = self.stack_file.stat().st_size
                if size == before and size > self._read_to:
                    break
                before = size
        with contextlib.suppress(OSError), open(self.stack_file, "rb") as file:
            file.seek(self._read_to)
            return parse_stacks(file.read(1 << 20).decode("utf-8", "replace"))
        return []

    def _write(self) -> None:
        temporary = self.out.with_name(f".{self.out.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(self._found))
            os.replace(temporary, self.out)
