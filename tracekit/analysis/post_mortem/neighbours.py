"""Who else held memory of a GPU that ran out: processes with a context where none should be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracekit.analysis.basis.facts import Facts
from tracekit.findings import Finding, ranks_words, say

__all__ = ["Neighbours", "neighbours_in", "with_neighbours"]

_HOLDS = re.compile(r"Process (\d{1,10}) has ([\d.]{1,12}) ([KMG])iB memory in use")
_ITSELF = "this process has"
"""In a container the driver's number of a process is another one than its own: then PyTorch lists
the failing process among the others, and does not say this."""
_MIB: Mapping[str, float] = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other processes on a GPU, as PyTorch's error lists them."""

    pids: tuple[int, ...]
    mib: float


def neighbours_in(text: str, own_pid: object = None) -> Neighbours | None:
    """Processes beside the failing one in an error's text; None where it lists none, or where
    the failing one may be among them."""
    if _ITSELF not in text:
        return None
    held = {int(pid): float(size) * _MIB[unit] for pid, size, unit in _HOLDS.findall(text)}
    if isinstance(own_pid, int):
        held.pop(own_pid, None)
    return Neighbours(tuple(sorted(held)), sum(held.values())) if held else None


def with_neighbours(finding: Finding, facts: Facts) -> Finding:
    """The finding, and if other processes were on that GPU, who they are and what keeps them off.

    That memory ran out may then be their doing, and a smaller batch is the second advice.
    """
    if finding.id != "crash.oom" or not finding.ranks:
        return finding
    told = finding.evidence
    text = str(told.get("error") or told.get("text") or "")
    own = facts.of(finding.ranks[0])
    found = neighbours_in(text, own.identity.get("pid"))
    if found is None:
        return finding
    ranks = [
        rank
        for rank, of in sorted(facts.ranks.items())
        if of.identity.get("pid") in found.pids and of.host == own.host
    ]
    named = say("oom.ranks", ranks=ranks_words(ranks)) if ranks else say("oom.nobody")
    about = {"count": len(found.pids), "mib": found.mib, "named": named}
    return replace(
        finding,
        title=say("oom.neighbours", told=finding.title, **about),
        evidence={
            **told, "on_its_gpu": {"pids": list(found.pids), "mib": found.mib, "ranks": ranks},
        },
        advice=(say("advice.oom.neighbours"), *finding.advice),
    )  # fmt: skip
