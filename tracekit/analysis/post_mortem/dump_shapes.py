"""Shapes of waiting in dumps that have no culprit: circles of messages, a rank alone in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tracekit.analysis.post_mortem.dump_rows import Dumps, Part

if TYPE_CHECKING:
    from tracekit.analysis.post_mortem.dumps import Accused, Wait

__all__ = ["alone", "circle", "unmatched"]


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
