"""Whether all ranks save the same: what each says that its checkpoint holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.analysis.deaths import ranks_words
from tracekit.analysis.peers import set_of
from tracekit.analysis.record import Record
from tracekit.findings import Certainty, Finding, Severity, say

__all__ = ["checkpoint_findings"]

_COMPARED = ("checksum", "variables", "step", "save_counter")
"""What must agree, the gravest first."""


def checkpoint_findings(record: Record) -> Iterator[Finding]:
    """Checkpoints that ranks made together and that hold different things."""
    told = {
        rank: states
        for rank in record.ranks
        if (states := record.facts.of(rank).told("checkpoint_state"))
    }
    if len(told) < 2 or not record.peers.replicas:
        return
    for name in _COMPARED:
        found = _first_difference(record, told, name)
        if found is not None:
            place, values = found
            yield _skew(name, place, values, told)
            return


def _first_difference(
    record: Record, told: Mapping[int, list[dict[str, Any]]], name: str
) -> tuple[int, dict[int, Any]] | None:
    """The first save, counted through, in which ranks that do the same work differ."""
    for place in range(min(map(len, told.values()))):
        values = {rank: states[place].get(name) for rank, states in told.items()}
        known = {rank: value for rank, value in values.items() if value is not None}
        for rank in known:
            # Of other parts of a model other ranks save other things.
            beside = set_of(rank, record.peers.sets) if record.peers.sets else tuple(known)
            among = {other: known[other] for other in beside if other in known}
            if len({str(value) for value in among.values()}) > 1:
                return place, among
    return None


def _skew(
    name: str, place: int, values: Mapping[int, Any], told: Mapping[int, list[dict[str, Any]]]
) -> Finding:
    votes = Counter(str(value) for value in values.values()).most_common(2)
    decided = votes[0][1] > votes[1][1]
    odd = tuple(sorted(r for r, v in values.items() if str(v) != votes[0][0] or not decided))
    usual = votes[0][0]
    listed = ", ".join(f"{rank}: {values[rank]}" for rank in odd[:8])
    key = "skew" if decided else "undecided"
    return Finding(
        "checkpoint.skew",
        Severity.WARNING,
        Certainty.PROVEN,
        say(
            f"checkpoint.{key}", ranks=ranks_words(odd), count=place + 1,
            what=say(f"checkpoint.{name}"), listed=listed, usual=usual,
        ),
        ranks=odd,
        evidence={
            "save": place + 1,
            "differs": name,
            "states": {str(rank): told[rank][place] for rank in sorted(values)[:16]},
        },
        advice=(say(f"advice.checkpoint.{name}"),),
    )  # fmt: skip
