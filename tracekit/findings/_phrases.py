"""Phrases that many verdicts share."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings.words import Words, say

__all__ = ["ranks_words", "waiting_words"]


def waiting_words(ranks: Sequence[int]) -> Words:
    """Who waits, with the verb that fits."""
    return say("waiting.one" if len(ranks) == 1 else "waiting.many", ranks=ranks_words(ranks))


def ranks_words(ranks: Sequence[int]) -> Words:
    """Ranks as people list them: 0-2, 5."""
    parts: list[str] = []
    ordered = sorted(ranks)
    start = 0
    for i, rank in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != rank + 1:
            first = ordered[start]
            parts.append(str(rank) if first == rank else f"{first}-{rank}")
            start = i + 1
    return say("ranks.one" if len(ordered) == 1 else "ranks.many", listed=", ".join(parts))
