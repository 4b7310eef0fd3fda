"""Blocks with and without tracing that take turns: what the change is, and how sure that is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from benchmarks.rows import Row

__all__ = ["CLOCKS", "Block", "changes", "interval", "take_turns"]

Block = tuple[float, float]
"""Wall time and CPU time of a step of a block."""
CLOCKS = ("wall time", "CPU time")
BAR = 0.01


def take_turns(block: Callable[[bool], Block], pairs: int) -> list[dict[bool, Block]]:
    """Run ``block(traced)`` so often each way, the order in each pair by chance."""
    for traced in (True, False):
        block(traced)
    orders = [random.sample([True, False], 2) for _ in range(pairs)]
    return [{traced: block(traced) for traced in order} for order in orders]


def interval(pairs: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of bootstrapped medians: now and then a neighbour has half of a core."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(pairs, k=len(pairs))) for _ in range(4_000))
    return medians[100], medians[-101]


def changes(blocks: Sequence[dict[bool, Block]], steps: int, of: str) -> Iterator[Row]:
    """By how much a step is longer with tracing, by each clock; blocks have milliseconds.

    Of a pair the logarithm of the ratio counts: the mean of the ratios of two equal blocks is
    above one where the machine is noisy.
    """
    for place, clock in enumerate(CLOCKS):
        step = median(pair[False][place] for pair in blocks)
        logs = [math.log(pair[True][place] / pair[False][place]) for pair in blocks]
        low, high = map(math.expm1, interval(logs))
        holds = True if high <= BAR else None if high - low > BAR else False
        yield Row(
            f"A/B of {2 * len(blocks) * steps:,} steps of {of} of {step:.0f} ms, {clock}",
            f"{low:+.2%} to {high:+.2%}{' (not shown)' if holds is None else ''}",
            "upper bound <= 1 %",
            holds,
        )
