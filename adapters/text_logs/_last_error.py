"""What c10d quotes of NCCL under ``Last error:``: the best clue there is without NCCL's own log.

The line has no tag of a rank, as it is the last one of a message of several lines, and it may be
the cause of the error above it or only the end of another rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.adapters.nccl_log import Meaning, meaning_of_warning, peer_of
from tracekit.adapters.text_logs._rank_log import Line

__all__ = ["Quoted", "announces", "quoted"]

_MARK = "Last error:"


@dataclass(frozen=True, slots=True)
class Quoted:
    """A message of NCCL that explains the error of a rank."""

    rank: int | None
    line: Line
    cause: str
    peer: str | None


def announces(body: str) -> bool:
    """Whether the next line is the quotation."""
    return body.rstrip().endswith(_MARK)


def quoted(body: str) -> tuple[Meaning, str | None] | None:
    """What a quotation means, and which peer it is about; None for one that nobody knows."""
    text = body.strip().encode()
    meaning = meaning_of_warning(text, "")
    return None if meaning is None else (meaning, peer_of(text))
