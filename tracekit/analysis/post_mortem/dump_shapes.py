"""Shapes of waiting in dumps that have no culprit: circles of messages, a rank alone in a call,
exchanges in which what is sent is not what is expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.analysis.post_mortem.dump_rows import Dumps, Part

if TYPE_CHECKING:
    from tracekit.analysis.post_mortem.dumps import Accused, Wait

__all__ = ["Exchange", "Sites", "alone", "circle", "exchanges", "parting", "unmatched"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call in which all ranks send to all, and what they give does not fit."""

    group: str
    seq: int
    parts: tuple[Part, ...]
    pairs: tuple[tuple[int, int, int, int], ...]
    """Who sends how many numbers to whom, who expects how many; empty where only sums are told."""
    sent: int
    received: int
    """Numbers in all, of all ranks."""


@dataclass(frozen=True, slots=True)
class Sites:
    """The first call of a number that one rank made elsewhere in the code than the others."""

    seq: int
    own: str
    others: str


def unmatched(dumps: Dumps, patience_ns: float) -> dict[int, dict[int, Part]]:
    """Open messages that the other side has not posted, by rank and by the other's.

    What was younger than ``patience_ns`` when its rank was dumped may be a job at work.
    """
    opened = [p for p in dumps.parts if p.is_open and p.op in ("send", "recv")]
    there = {(p.group, p.op, p.rank, p.peer) for p in opened}
    found: dict[int, dict[int, Part]] = {}
    for part in opened:
        written = dumps.written_ns.get(part.rank)
        if written is not None and written - part.start_ns < patience_ns:
            continue
        other = "recv" if part.op == "send" else "send"
        if part.peer is not None and (part.group, other, part.peer, part.rank) not in there:
            found.setdefault(part.rank, {}).setdefault(part.peer, part)
    return found


def circle(messages: Mapping[int, Mapping[int, Part]]) -> list[tuple[int, int]]:
    """Ranks that each wait for a message of the next one, as pairs; empty where there is none."""
    done: set[int] = set()
    for first in sorted(messages):
        path: list[int] = []
        rank = first
        while rank not in done and rank in messages:
            done.add(rank)
            path.append(rank)
            rank = next(
                (peer for peer in sorted(messages[rank]) if peer in path), min(messages[rank])
            )
        if rank in path:
            ring = path[path.index(rank) :]
            return list(zip(ring, [*ring[1:], ring[0]], strict=True))
    return []


def alone(accused: Sequence[Accused], dumps: Dumps) -> Wait | None:
    """A call that one rank is in and all others have not come to, who are in no other and have
    ended all before it: the one may as well have made a call too many."""
    wait = accused[0].wait if accused else None
    if wait is None or len(wait.waiting) != 1 or len(accused) < 2 or wait.untold:
        return None
    busy = {part.rank for part in dumps.parts if part.is_open}
    same = all(one.wait is wait and one.behind is None for one in accused)
    even = {one.last for one in accused} == {wait.seq - 1}
    whole = {one.rank for one in accused} == set(wait.absent)
    return wait if same and even and whole and not busy & set(wait.absent) else None


def parting(wait: Wait, dumps: Dumps) -> Sites | None:
    """Where the code of a rank that is alone in a call parted from that of the others, as far as
    the stacks of the last calls tell."""

    def sites(rank: int) -> Mapping[int, str]:
        held = dumps.standing.get(rank, {}).get(wait.group)
        return held.sites if held else {}

    own = sites(wait.waiting[0])
    others = [sites(rank) for rank in wait.absent]
    for seq in sorted(own):
        places = {other.get(seq) for other in others}
        if len(places) == 1 and None not in places and own[seq] not in places:
            return Sites(seq, own[seq], str(places.pop()))
    return None


def exchanges(dumps: Dumps) -> Iterator[Exchange]:
    """Open calls of which all members tell what they send and expect, and that do not fit."""
    calls: dict[tuple[str, int], dict[int, Part]] = {}
    several: set[tuple[str, int]] = set()
    """Numbers that a rank gave to more than one call, as coalesced ones have."""
    for part in dumps.parts:
        if part.is_open and part.seq is not None and part.sent is not None:
            call = part.group, part.seq
            if calls.setdefault(call, {}).setdefault(part.rank, part) is not part:
                several.add(call)
    for (group, seq), parts in sorted(calls.items()):
        if (group, seq) in several:
            continue
        members = dumps.members.get(group, ())
        counts = [(part.sent, part.received) for part in parts.values()]
        if set(parts) != set(members) or not all(map(_is_told, counts)):
            continue
        sent = sum(sum(one or ()) for one, _ in counts)
        received = sum(sum(one or ()) for _, one in counts)
        pairs = tuple(_unequal(parts, members))
        if pairs or sent != received:
            yield Exchange(group, seq, tuple(parts.values()), pairs, sent, received)


def _is_told(counts: tuple[tuple[int, ...] | None, tuple[int, ...] | None]) -> bool:
    return all(one is not None and min(one, default=0) >= 0 for one in counts)


def _unequal(
    parts: Mapping[int, Part], members: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Pairs of which one expects another count than the other sends, where each is told."""
    each = {
        rank: (part.sent, part.received)
        for rank, part in parts.items()
        if len(part.sent or ()) == len(part.received or ()) == len(members) > 1
    }
    for i, sender in enumerate(members):
        for j, receiver in enumerate(members):
            if sender in each and receiver in each:
                sent, received = (each[sender][0] or ())[j], (each[receiver][1] or ())[i]
                if sent != received:
                    yield sender, receiver, sent, received
