"""Several processes that were one rank: which of them counts."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.dataset.coverage import Duplicate
from tracekit.dataset.parts import Held

__all__ = ["duplicates"]


def duplicates(held: Iterable[Held]) -> tuple[list[Duplicate], set[tuple[int, str]]]:
    """The ranks that were several processes, and the stems of those that do not count.

    The one with collectives counts; of several such the one with most spans.
    """
    weight: dict[tuple[int, int], dict[str, tuple[bool, int]]] = {}
    for one in held:
        if one.stem:
            stems = weight.setdefault((one.attempt, one.rank), {})
            collectives, spans = stems.get(one.stem, (False, 0))
            stems[one.stem] = collectives or one.collectives > 0, spans + one.spans
    found, losers = [], set()
    for (attempt, rank), stems in sorted(weight.items()):
        if len(stems) > 1:
            best = sorted(stems, key=lambda stem: (stems[stem], stem), reverse=True)
            found.append(Duplicate(attempt, rank, tuple(best)))
            losers |= {(attempt, stem) for stem in best[1:]}
    return found, losers
