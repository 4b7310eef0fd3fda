"""The four questions, each answered in a sentence."""

from __future__ import annotations

import numpy as np

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import Tables
from tracekit.analysis.post_mortem.claims import Mortem
from tracekit.analysis.roles.peers import Peers
from tracekit.analysis.slow.judge import Judgement
from tracekit.findings import Words, say, waiting_words
from tracekit.findings.result import Questions, Shares

__all__ = ["answers"]

_MS = 1e6
_LITTLE = 0.02


def answers(
    mortem: Mortem,
    judgement: Judgement | None,
    peers: Peers | None,
    shares: Shares | None,
    tables: Tables | None,
    steps: Steps | None,
    facts: Facts,
) -> Questions:
    """Who lags, what blocks, who idles; whether a change helped is told by a comparison."""
    return Questions(
        _lagging(mortem, judgement, peers, tables, steps),
        _blocked(mortem, shares, tables, facts),
        _idle(shares, tables, steps),
    )


def _lagging(
    mortem: Mortem,
    judgement: Judgement | None,
    peers: Peers | None,
    tables: Tables | None,
    steps: Steps | None,
) -> Words:
    if mortem.symptom == "hang" and mortem.culprits:
        return say("lagging.hang", rank=mortem.culprits[0], call=mortem.call)
    if mortem.culprits:
        return say("lagging.crash", rank=mortem.culprits[0])
    if peers is not None and peers.unknown is not None:
        return say("lagging.cannot_tell", reason=say(f"reason.{peers.unknown}"))
    if judgement is None or tables is None or steps is None:
        return say("lagging.cannot_tell", reason=say("reason.steps"))
    step = float(np.median(tables.values["wall"][steps.used].mean(axis=1))) / _MS
    stage = judgement.stage
    if stage is not None and all(stage.share > one.share for one in judgement.suspects):
        key = "stages.one" if len(stage.stages) == 1 else "stages.many"
        stages = say(key, listed=", ".join(map(str, stage.stages)))
        cause = say(f"phase_name.{stage.cause}")
        return say("lagging.stage", stages=stages, cause=cause, ms=stage.imposed / _MS, step=step)
    if not judgement.suspects:
        return say("lagging.nobody")
    worst = judgement.suspects[0]
    cause = say(f"phase_name.{worst.cause}")
    ms = worst.imposed / _MS
    key = "lagging.rank" if worst.kind == "rank" else "lagging.sometimes"
    return say(key, rank=worst.rank, cause=cause, ms=ms, step=step)


def _blocked(
    mortem: Mortem, shares: Shares | None, tables: Tables | None, facts: Facts
) -> Words | None:
    if mortem.symptom == "hang" and mortem.call is not None:
        return say("blocked.hang", call=mortem.call, waiting=waiting_words(mortem.waiting))
    if shares is None or tables is None or not tables.groups:
        return None
    if shares.exposed_communication < _LITTLE:
        return say("blocked.nothing")
    worst = max(tables.groups.values(), key=lambda group: group.wait + group.transfer)
    return say(
        "blocked.share",
        op=worst.op,
        group=facts.group_names.get(worst.group, worst.group),
        percent=100 * shares.exposed_communication,
        wait=100 * shares.wait,
    )


def _idle(shares: Shares | None, tables: Tables | None, steps: Steps | None) -> Words | None:
    if shares is None or tables is None or steps is None:
        return None
    waits = tables.values["exposed_wait"][steps.used].mean(axis=0)
    compute = 100 * shares.compute
    if not waits.any():
        return say("idle.alone", compute=compute)
    i = int(np.argmax(waits))
    return say(
        "idle.share",
        compute=compute,
        communication=100 * shares.exposed_communication,
        rank=tables.ranks[i],
        ms=float(waits[i]) / _MS,
    )
