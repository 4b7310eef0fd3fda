"""Both straggler rules on plain numbers; needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, median

__all__ = ["Straggler", "find_stragglers", "sign_test"]

_PEER_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is slow by at least one rule.

    ``imposed_wait`` is what it alone cost the others in a mean step, in the unit of the input;
    ``share`` is that of the median step. ``ratio`` is its mean over the mean of all ranks.
    ``last_in`` is the share of steps in which it was the last.
    """

    rank: int
    rules: tuple[str, ...]
    ratio: float
    imposed_wait: float
    share: float
    last_in: float


def find_stragglers(
    work: Mapping[int, Sequence[float]], threshold: float = 1.3, share: float = _PEER_SHARE
) -> list[Straggler]:
    """The slow ranks of ``{rank: [seconds of own work in each step, ...]}``, the worst first.

    The mean rule names a rank whose mean is above ``threshold`` times the mean over ranks. The
    peer rule takes every entry for a step at whose end all ranks meet, and names a rank that,
    in the median step, keeps the others waiting for at least ``share`` of it. Two ranks are too
    few for the mean rule below 1.86 times the other one's time.
    """
    if not work:
        return []
    count = min(len(entries) for entries in work.values())
    if not count or len(work) < 2:
        return []
    means = {rank: fmean(entries) for rank, entries in work.items()}
    overall = fmean(means.values())
    imposed: dict[int, list[float]] = {rank: [] for rank in work}
    lengths = []
    for step in range(count):
        (last, longest), (_, second) = sorted(
            ((rank, entries[step]) for rank, entries in work.items()), key=lambda item: -item[1]
        )[:2]
        lengths.append(longest)
        for rank, waits in imposed.items():
            waits.append(longest - second if rank == last else 0.0)
    length = median(lengths)
    found = []
    for rank, waits in imposed.items():
        ratio = means[rank] / overall if overall else 1.0
        cost = median(waits) / length if length else 0.0
        rules = [("peer", cost >= share > 0), ("mean", ratio > threshold)]
        names = tuple(name for name, speaks in rules if speaks)
        if names:
            last_in = sum(wait > 0 for wait in waits) / count
            found.append(Straggler(rank, names, ratio, fmean(waits), cost, last_in))
    return sorted(found, key=lambda one: (-one.share, -one.ratio, one.rank))


def sign_test(positive: int, total: int, chance: float = 0.5, tests: int = 1) -> float:
    """The probability of at least so many positive signs of ``total``, in one of so many tests.

    ``chance`` is the probability of each sign to be positive where nothing is behind it.
    """
    tail = sum(
        comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(positive, total + 1)
    )
    return min(1.0, tests * tail)
