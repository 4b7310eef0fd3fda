"""From what each source claims to one verdict: the cause, its effects, what speaks against it.

Classes of causes and their effects stand in ``findings/causes.py``; here is only how claims of
several sources are held together. The order in which claims come changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracekit.analysis.post_mortem.claims import Claim, Mortem, lines_of
from tracekit.findings import Certainty, Finding, Words, ranks_words, say
from tracekit.findings.causes import CAUSES

__all__ = ["Settled", "next_steps", "settle"]

_SOURCES = ("journal", "kernel", "scheduler", "logs", "dumps", "nccl")
"""Of equal claims that of the first one here is told."""
_SETTLED_ITSELF = ("dumps", "nccl")
"""Sources whose own claims stand beside each other: they have been weighed against one another."""
_NOBODY = ("scheduler", "terminated", "closed", "timed_out", "versions", "launcher")
"""Classes that accuse no rank, whichever ranks they list."""
_DISAGREE = ("sizes", "mismatch")
_HANGS = (*_DISAGREE, "uneven", "rank_stopped", "rank_gil", "rank_busy", "cycle", "rank_missing")
_WAITED_FOR = _HANGS[len(_DISAGREE) :]
_BY_SILENCE = ("vanished", "exit", "rank_missing")
"""Classes that name a rank because others do not explain themselves."""
_OF_LINKS = ("net_retry", "net_port", "net_gid", "net_acs", "net_gdr", "net_firewall", "net_socket")
"""Classes about the way between two ranks."""
_SURELY_HAPPENED = ("killed_oom",)
"""Classes whose event is certain even where nobody tells of which rank it was."""
_UNKNOWN = {
    "host": "HOST", "pid": "PID", "peer": "PEER", "card": "mlx5_0", "port": 1, "job": "JOB",
}  # fmt: skip
_SURE = list(Certainty)


@dataclass(frozen=True, slots=True)
class Settled:
    """The verdict, and the claims it was made of."""

    told: Mortem
    primary: Claim
    agreeing: tuple[Claim, ...] = ()
    effects: tuple[Claim, ...] = ()
    against: tuple[Claim, ...] = ()


def settle(claims: Iterable[Claim]) -> Settled | None:
    """The one story that explains most; None where nothing is claimed."""
    ordered = sorted(claims, key=_order)
    if not ordered:
        return None
    roots = [
        claim
        for place, claim in enumerate(ordered)
        if not any(_explains(other, claim) for other in ordered[:place])
        and not (claim.cause == "aborted" and any(_explains(o, claim) for o in ordered[place:]))
    ]
    primary = min(roots, key=lambda claim: (_SURE.index(claim.certainty), ordered.index(claim)))
    beside, against = [primary], []
    for claim in roots:
        if claim is primary:
            continue
        if claim.source == primary.source and claim.source in _SETTLED_ITSELF:
            beside.append(claim)
        elif _accused(claim) and not _explains(primary, claim):
            against.append(claim)
    others = [one for one in ordered if one not in beside and one not in against]
    agreeing = [
        one
        for one in others
        if (_accused(one) and _accused(one) == _accused(primary)) or _of_one_call(one, primary)
    ]
    effects = [one for one in others if one not in agreeing]
    certainty = _certainty(primary, agreeing, against)
    found = [
        _joined(finding, claim, number, certainty, agreeing, effects, against)
        if claim is primary
        else replace(finding, evidence={**finding.evidence, "class": claim.cause})
        for claim in beside
        for number, finding in enumerate(claim.told.findings)
    ]  # fmt: skip
    all_of_them = [*beside, *agreeing, *effects]
    story = replace(
        primary.told,
        findings=tuple(found),
        culprits=() if certainty is Certainty.CANNOT_TELL else primary.told.culprits,
        waiting=primary.told.waiting
        or next((one.told.waiting for one in all_of_them if one.told.waiting), ()),
        call=primary.told.call or next((o.told.call for o in all_of_them if o.told.call), None),
        opened=primary.told.opened
        or next((one.told.opened for one in all_of_them if one.told.opened), None),
        phase=primary.told.phase
        or next((one.told.phase for one in all_of_them if one.told.phase), None),
    )
    return Settled(story, primary, tuple(agreeing), tuple(effects), tuple(against))


def _order(claim: Claim) -> tuple[Any, ...]:
    return (
        claim.place,
        _SURE.index(claim.certainty),
        _SOURCES.index(claim.source),
        sorted(claim.ranks),
        [finding.title for finding in claim.told.findings],
    )


def _accused(claim: Claim) -> frozenset[int]:
    return frozenset() if claim.cause in _NOBODY else claim.ranks


def _explains(cause: Claim, effect: Claim) -> bool:
    """Whether a claim tells the same as an earlier one in the order, or an effect of it."""
    if cause is effect or (cause.source == effect.source and cause.source in _SETTLED_ITSELF):
        return False
    one, other = _accused(cause), _accused(effect)
    if effect.cause in _OF_LINKS and effect.cause != cause.cause:
        other = frozenset()  # who complains of a link may be at either end of it
    if one and one == other and effect.cause not in _NOBODY and cause.place <= effect.place:
        return True
    if (cause.cause == effect.cause and not other) or _of_one_call(cause, effect):
        return True
    if effect.cause not in CAUSES[cause.cause].explains:
        return False
    if effect.cause == "scheduler" and not _asked_for(effect):
        return False
    if not other:
        return True
    if effect.cause == "aborted":  # who waited aborts; who was waited for had a reason of its own
        return cause.cause not in _WAITED_FOR or not one & other
    silent = effect.certainty is not Certainty.PROVEN and effect.cause in _BY_SILENCE
    if cause.certainty is Certainty.CANNOT_TELL:
        return silent and cause.cause in _SURELY_HAPPENED
    if not one or other <= one | cause.also or cause.cause in _DISAGREE:
        return True
    return silent and (one <= other or cause.cause not in _HANGS)


def _of_one_call(one: Claim, other: Claim) -> bool:
    """Whether two claims tell of one disagreement: who saw fewer ranks cannot tell which side is
    the odd one, and lists both."""
    both = one.cause in _DISAGREE and other.cause in _DISAGREE
    return both and bool(_accused(one) & _accused(other))


def _asked_for(claim: Claim) -> bool:
    """Whether a scheduler ended a job for what the job did: it ran too long, or was given up."""
    reasons = [finding.evidence.get("reason") for finding in claim.told.findings]
    return all(reason in ("time limit", "cancelled") for reason in reasons)


def _certainty(
    primary: Claim, agreeing: Sequence[Claim], against: Sequence[Claim]
) -> Certainty | None:
    """The certainty that the verdict has over all sources; None: that of each of its findings."""
    if against:
        surest = min(_SURE.index(one.certainty) for one in against)
        alike = surest == _SURE.index(primary.certainty)
        both_hang = primary.cause in _HANGS and any(one.cause in _HANGS for one in against)
        if alike and both_hang:
            return Certainty.CANNOT_TELL
        return Certainty.LIKELY if primary.certainty is not Certainty.CANNOT_TELL else None
    seen = {primary.source, *(one.source for one in agreeing)}
    if primary.source == "dumps" and seen - {"dumps", "nccl"}:
        return Certainty.PROVEN  # a second look of another kind
    return None


def _joined(
    finding: Finding,
    of: Claim,
    number: int,
    certainty: Certainty | None,
    agreeing: Sequence[Claim],
    effects: Sequence[Claim],
    against: Sequence[Claim],
) -> Finding:
    """A finding of the verdict with what the other sources say to it."""
    evidence: dict[str, Any] = {**finding.evidence, "class": of.cause}
    lines = [*lines_of(finding), *_lines(agreeing)]
    if lines:
        evidence["lines"] = list(dict.fromkeys(lines))
    title = finding.title
    seen = {claim.source for claim in agreeing} - {of.source}
    others = [source for source in _SOURCES if source in seen]
    if agreeing:
        evidence["agree"] = [_told(claim) for claim in agreeing]
    if others:
        title = say("story.agree", told=title, sources=_listed(others))
    if effects and not number:
        evidence["effects"] = [_told(claim) for claim in effects]
    if against:
        evidence["contradicts"] = [_told(claim) for claim in against]
        but = "; ".join(
            say("story.names", source=say(f"story.{one.source}"), title=one.told.findings[0].title)
            for one in against
        )
        title = say("story.against", told=title, but=but)
    undecided = bool(against) and certainty is Certainty.CANNOT_TELL
    if undecided:
        evidence["candidates"] = sorted({*of.ranks, *(r for one in against for r in one.ranks)})
    advice = (finding.advice or next_steps(of.cause, finding.ranks)) + tuple(
        words
        for claim in against
        for words in claim.told.findings[0].advice
        if words not in finding.advice
    )
    return replace(
        finding,
        title=title,
        ranks=() if undecided else finding.ranks,
        certainty=certainty or finding.certainty,
        evidence=evidence,
        advice=advice,
    )


def next_steps(cause: str, ranks: Sequence[int]) -> tuple[Words, ...]:
    """What to do about a class of causes where its source does not say it."""
    values = {"rank": min(ranks, default="R"), "ranks": ranks_words(ranks), **_UNKNOWN}
    return tuple(say(key, **values) for key in CAUSES[cause].next)


def _told(claim: Claim) -> dict[str, Any]:
    """A claim as evidence of another one."""
    return {
        "source": claim.source,
        "class": claim.cause,
        "ranks": sorted(claim.ranks),
        "certainty": claim.certainty.value,
        "told": [str(finding.title) for finding in claim.told.findings],
        "lines": _lines([claim]),
    }


def _lines(claims: Iterable[Claim]) -> list[str]:
    return [line for claim in claims for finding in claim.told.findings for line in
            lines_of(finding)]  # fmt: skip


def _listed(sources: Sequence[str]) -> Words:
    named = [say(f"story.{source}") for source in sources]
    told = named[0]
    for one in named[1:]:
        told = say("story.and", one=told, other=one)
    return told
