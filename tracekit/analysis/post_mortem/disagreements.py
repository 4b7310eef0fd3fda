"""Calls that did not end well and into which ranks went with different sizes or types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say

__all__ = ["mismatch", "recorded_disagreements"]

_ALIKE = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
"""Operations in which all ranks give the same size; in others sizes may differ. Ranks in different
operations show as a hang of their own."""


def recorded_disagreements(engine: Engine, seen: Overview, facts: Facts) -> list[Finding]:
    """Such a call of each group, by where the ranks themselves say that they stopped."""
    rows = engine.sql(query("disagreed", attempt=seen.attempt)).to_pylist()
    found: dict[str, Finding] = {}
    for (group, seq, _), parts in groupby(rows, key=itemgetter("grp", "seq", "op")):
        told = list(parts)
        said = _said(told)
        if len(said) > 1 and group not in found:
            opened = [part["rank"] for part in told if part["is_open"]]
            evidence = {"class": "sizes", "open_on": opened}
            found[group] = mismatch(group, facts.group_names.get(group, group), seq, said, evidence)
    return list(found.values())


def _said(parts: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Which ranks went in with what, the most told first; nothing where that is not known."""
    typed = all(part["dtype"] for part in parts)
    said: dict[str, list[int]] = {}
    for part in parts:
        if part["op"] not in _ALIKE or part["name"] != part["op"] or not part["bytes"]:
            return {}
        said.setdefault(_sized(part, typed), []).append(part["rank"])
    ordered = sorted(said.items(), key=lambda item: (-len(item[1]), item[1]))
    return {what: tuple(sorted(ranks)) for what, ranks in ordered}


def _sized(part: Mapping[str, Any], typed: bool) -> Words:
    dtype = part["dtype"] if typed else "type not known of all"
    return say("hang.call.sized", op=part["op"], bytes=part["bytes"], dtype=dtype)


def mismatch(
    group: str,
    name: str,
    seq: int,
    said: Mapping[str, tuple[int, ...]],
    evidence: Mapping[str, object],
) -> Finding:
    """What is told of a call in which ranks differ; ``said`` has the most told first."""
    parts = "; ".join(
        say("hang.dump.part", ranks=ranks_words(ranks), what=what) for what, ranks in said.items()
    )
    most, *others = said.values()
    # Where one side is larger, those who differ from it are looked at first.
    alone = all(len(ranks) < len(most) for ranks in others)
    ranks = sorted(rank for ranks in (others if alone else said.values()) for rank in ranks)
    return Finding(
        "hang.mismatch",
        Severity.CRITICAL,
        Certainty.PROVEN,
        say("hang.dump.mismatch", seq=seq, group=name, parts=parts),
        ranks=tuple(ranks),
        evidence={
            "group": group,
            "seq": seq,
            "parts": {str(what): list(ranks) for what, ranks in said.items()},
            **evidence,
        },
        advice=(say("advice.branch"),),
    )
