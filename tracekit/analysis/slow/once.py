"""Single steps that took many times the usual: how much they cost, and who was late in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import PHASES, Tables
from tracekit.analysis.options import Options
from tracekit.analysis.roles.peers import Peers
from tracekit.analysis.slow.judge import Judgement
from tracekit.findings import Certainty, Finding, Severity, say
from tracekit.findings.words import Words

__all__ = ["once_findings"]

_S = 1e9
_MOST_TOLD = 16


def once_findings(
    judgement: Judgement, tables: Tables, steps: Steps, peers: Peers, options: Options, where: str
) -> Iterator[Finding]:
    """One finding about all of them, by the longest; what is late again and again is no part."""
    again = {int(place) for suspect in judgement.suspects for place in suspect.places}
    places = [place for place in steps.huge.tolist() if place not in again]
    if not places:
        return
    wall = tables.values["wall"].mean(axis=1, dtype=np.float64)
    usual = float(np.median(wall[steps.used]))
    longest = max(places, key=lambda place: wall[place])
    late = None if peers.unknown else _late(judgement, longest, wall[longest] - usual, options)
    labels = [int(tables.labels[place]) for place in places]
    step, took = int(tables.labels[longest]), wall[longest] / _S
    if len(places) == 1:
        what = say("straggler.once.one", step=step, took=took, times=wall[longest] / usual)
    else:
        what = say("straggler.once.many", count=len(places), step=step, took=took)
    who: Words = say("straggler.once.nobody")
    evidence = {
        "median_step_ms": round(usual / 1e6, 3),
        "steps": labels[:_MOST_TOLD],
        "step_ms": [round(wall[place] / 1e6, 3) for place in places[:_MOST_TOLD]],
    }
    cause = "unknown"
    if late is not None:
        cause = _cause(tables, longest, late, options)
        who = say(
            "straggler.once.rank", rank=tables.ranks[late],
            late=judgement.imposed[longest, late] / _S, phase=say(f"phase_name.{cause}"),
        )  # fmt: skip
    yield Finding(
        "straggler.once",
        Severity.INFO,
        Certainty.LIKELY,
        say("straggler.once", what=what, who=who),
        ranks=() if late is None else (tables.ranks[late],),
        steps=(min(labels), max(labels)),
        lost_ms=float(sum(wall[place] - usual for place in places)) / 1e6,
        evidence=evidence,
        advice=(say("advice.series", run=where, first=step, last=step),),
        cause=cause,
    )


def _late(judgement: Judgement, place: int, lost: float, options: Options) -> int | None:
    """The rank for which the others waited through most of what the step took longer."""
    imposed = judgement.imposed[place]
    worst = int(np.argmax(imposed))
    return worst if imposed[worst] >= options.cause_share * lost else None


def _cause(tables: Tables, place: int, late: int, options: Options) -> str:
    """The phase that took so much longer than on the other ranks, if one explains it."""
    more = {}
    for phase in PHASES:
        spent = tables.values[f"own_{phase}"][place]
        more[phase] = float(spent[late] - np.median(np.delete(spent, late)))
    phase = max(more, key=lambda name: more[name])
    whole = sum(max(0.0, ns) for ns in more.values())
    return phase if 0 < whole * options.cause_share <= more[phase] else "unknown"
