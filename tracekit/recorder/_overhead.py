"""What recording costs: of one span on this machine, and which steps go without, to compare."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

__all__ = ["BLOCK_STEPS", "Pause", "cold_cost", "is_untraced", "pause"]

BLOCK_STEPS = 25
_SAMPLES = 24
_CACHE = bytes(1 << 19)


class Pause:
    """Whether recording pauses for the steps of a block; adapters ask before they record.

    Only where an adapter has said that it does (``heeded``) are steps left untraced.
    """

    __slots__ = ("heeded", "on")

    def __init__(self) -> None:
        self.on = False
        self.heeded = False


pause = Pause()


def is_untraced(step: int) -> bool:
    """Whether a step goes untraced where the overhead is measured: the same on all ranks.

    Blocks take turns as traced, untraced, untraced, traced, so that a drift meets both alike.
    """
    return (step // BLOCK_STEPS) % 4 in (1, 2)


def cold_cost(call: Callable[[], Any]) -> int:
    """Nanoseconds of a call whose code and data have left the caches, as they have in a training.

    The median of a few calls; takes about a millisecond.
    """
    away = bytearray(len(_CACHE))
    times, nothing = [], []
    for sample in range(_SAMPLES + 4):
        away[:] = _CACHE
        begun = perf_counter_ns()
        call()
        ended = perf_counter_ns()
        if sample >= 4:
            times.append(ended - begun)
            nothing.append(perf_counter_ns() - ended)
    return max(0, round(median(times) - median(nothing)))
