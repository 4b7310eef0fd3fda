"""Whether queues that could not be connected join different rails: cards that only meet their own
kind on other hosts in a fabric that connects each rail by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.analysis.network.facts import Notice

__all__ = ["Rails", "rails_of"]

_QUEUE = re.compile(
    r"on dev ([\w.-]{1,40}):\d{1,3}\b.{1,120}?local GID ([\w:.]{2,60}), remote GID ([\w:.]{2,60})"
)
_ENOUGH = 2
"""Queues of which both cards are known, to say something of all."""


@dataclass(frozen=True, slots=True)
class Rails:
    """Failed queues by the names of the cards at both ends, as far as lines of both tell."""

    across: tuple[tuple[str, str], ...]
    along: tuple[tuple[str, str], ...]
    """Of one rail: cards of one name."""
    unknown: int
    """Queues whose other end no line tells."""

    @property
    def only_across(self) -> bool:
        """Whether all that are known join different rails."""
        return len(self.across) >= _ENOUGH and not self.along


def rails_of(notices: Sequence[Notice]) -> Rails:
    """Look up the card of each remote address among those that failed by themselves."""
    queues = [found.groups() for n in notices if (found := _QUEUE.search(n.text))]
    cards: dict[str, set[str]] = {}
    for card, address, _ in queues:
        cards.setdefault(address, set()).add(card)
    # An address that cards of several names have, of a private range say, tells neither.
    sure = {address: min(names) for address, names in cards.items() if len(names) == 1}
    ends = [(card, sure.get(remote)) for card, _, remote in queues]
    known = [(card, other) for card, other in ends if other is not None]
    return Rails(
        tuple(pair for pair in known if pair[0] != pair[1]),
        tuple(pair for pair in known if pair[0] == pair[1]),
        len(ends) - len(known),
    )
