"""Saves that some ranks are in and others never enter, where nothing between ranks was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tracekit.analysis.basis.ends import End, Open
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.options import Options
from tracekit.analysis.post_mortem.stalls import Culprit, culprit_of, over, patience
from tracekit.findings import Certainty

__all__ = ["UnmetSave", "find_unmet_save"]


@dataclass(frozen=True, slots=True)
class UnmetSave:
    """A save that does not end, who is in it, and who is not."""

    kind: str
    """missing (others never came), busy (only these save, the others wait) or unsure."""
    certainty: Certainty
    opened: Open
    inside: tuple[int, ...]
    outside: tuple[int, ...]
    culprits: tuple[Culprit, ...]
    before: int
    """How many such saves had ended."""
    since_ns: int
    seconds: float


def find_unmet_save(
    ends: Mapping[int, End], facts: Facts, median_step_ns: float | None, options: Options
) -> UnmetSave | None:
    """The save in which the job stands still; None where it goes on, or a collective tells more.

    Saves of several workers communicate inside of a graph, so that no call of theirs is recorded.
    A rank that always took part and now waits elsewhere is told also where that is a collective.
    """
    saving = {rank: one for rank, end in ends.items() if (one := end.saving) is not None}
    outside = tuple(rank for rank in ends if rank not in saving)
    if not saving or not outside:
        return None
    name = Counter(one.name for one in saving.values()).most_common(1)[0][0]
    inside = tuple(rank for rank, one in saving.items() if one.name == name)
    since = max(saving[rank].start_ns for rank in inside)
    until = over(ends, inside)
    seconds = (until - since) / 1e9
    longest = max(ends[rank].longest_save_ns.get(name, 0) for rank in ends) / 1e9
    usual = options.save_times_longest * longest
    bound = max(patience(ends, facts, median_step_ns, options), options.stall_s, usual)
    quiet = all((until - _last_sign(ends[rank])) / 1e9 >= bound for rank in outside)
    if seconds < bound or not quiet:
        return None
    before = max(ends[rank].saves.get(name, 0) for rank in inside)
    done = {rank: ends[rank].saves.get(name, 0) for rank in outside}
    took_part = all(0 < count <= before for count in done.values())
    if any(end.waits_in for end in ends.values()) and not took_part:
        return None
    gone = [rank for rank in outside if ends[rank].state == "clean"]
    if took_part:
        kind, certainty = "missing", Certainty.PROVEN
    elif len(gone) == len(outside):
        return None  # a rank that saves by itself when all others have ended
    elif before or any(done.values()):
        kind, certainty = "busy", Certainty.LIKELY
    elif len(inside) > len(outside):
        kind, certainty = "missing", Certainty.LIKELY
    else:
        kind, certainty = "unsure", Certainty.CANNOT_TELL
    named = inside if kind == "busy" else outside
    culprits = tuple(culprit_of(rank, ends, facts, options) for rank in named)
    opened = saving[inside[0]]
    return UnmetSave(kind, certainty, opened, inside, outside, culprits, before, since, seconds)


def _last_sign(end: End) -> int:
    """When a rank last began or ended something."""
    return max(end.last_end_ns or 0, *(one.start_ns for one in end.opened), 0)
