"""Whether all ranks save the same: what each says that its checkpoint holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.analysis.record import Record, number
from tracekit.analysis.roles.peers import set_of
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say

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
    saves = list(_aligned(told))
    for name in _COMPARED:
        for place, told_then in saves:
            values = _difference(record, told_then, name)
            if values:
                yield _skew(name, place, values, told_then)
                return


def _aligned(
    told: Mapping[int, list[dict[str, Any]]],
) -> Iterator[tuple[int, dict[int, dict[str, Any]]]]:
    """The states of the same save, with its number: by their order where all ranks told of as
    many, else by the step; a rank may have saved something more by itself."""
    counts = {len(states) for states in told.values()}
    if len(counts) == 1:
        for place in range(counts.pop()):
            yield place + 1, {rank: states[place] for rank, states in told.items()}
        return
    by_step: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for rank, states in told.items():
        for state in states:
            step = number(state.get("step"))
            if step is not None:
                by_step.setdefault(step, {}).setdefault(rank, []).append(state)
    for place, step in enumerate(sorted(by_step)):
        once = {rank: found[0] for rank, found in by_step[step].items() if len(found) == 1}
        if len(once) > 1:
            yield place + 1, once


def _difference(
    record: Record, states: Mapping[int, Mapping[str, Any]], name: str
) -> dict[int, Any]:
    """What ranks that do the same work say of one save, where they say different things."""
    known = {rank: one[name] for rank, one in states.items() if one.get(name) is not None}
    for rank in known:
        # Of other parts of a model other ranks save other things.
        beside = set_of(rank, record.peers.sets) if record.peers.sets else tuple(known)
        among = {other: known[other] for other in beside if other in known}
        if len({str(value) for value in among.values()}) > 1:
            return among
    return {}


def _skew(
    name: str, place: int, values: Mapping[int, Any], states: Mapping[int, Mapping[str, Any]]
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
            f"checkpoint.{key}", ranks=ranks_words(odd), count=place,
            what=say(f"checkpoint.{name}"), listed=listed, usual=usual,
        ),
        ranks=odd,
        evidence={
            "save": place,
            "differs": name,
            "states": {str(rank): states[rank] for rank in sorted(values)[:16]},
        },
        advice=(say(f"advice.checkpoint.{name}"),),
    )  # fmt: skip
