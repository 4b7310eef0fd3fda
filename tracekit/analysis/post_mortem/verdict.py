"""What became of the job, by all sources together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tracekit.analysis.basis.ends import End
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.options import Options
from tracekit.analysis.post_mortem.claims import Claim, Mortem, claims_of
from tracekit.analysis.post_mortem.deaths import post_mortem
from tracekit.analysis.post_mortem.disagreements import recorded_disagreements
from tracekit.analysis.post_mortem.dump_findings import dump_story
from tracekit.analysis.post_mortem.log_claims import log_claims, with_last_lines, with_notes
from tracekit.analysis.post_mortem.logs import Logs
from tracekit.analysis.post_mortem.neighbours import with_neighbours
from tracekit.analysis.post_mortem.reasoner import settle
from tracekit.dataset.engine import Engine
from tracekit.findings import Certainty, Finding, Severity, say

__all__ = ["judge_end"]

_CRITICAL_ONLY = ("config.versions", "config.env", "config.device")


def judge_end(
    engine: Engine,
    seen: Overview,
    facts: Facts,
    ends: Mapping[int, End],
    logs: Logs | None,
    network: Sequence[Finding],
    inputs: Sequence[Finding],
    median_step_ns: float | None,
    options: Options,
) -> tuple[Mortem, list[Finding]]:
    """What became of the job, and what is left of the findings about network and inputs."""
    recorded = post_mortem(ends, facts, median_step_ns, options)
    if logs is not None:
        recorded = with_last_lines(recorded, logs)
    dumps = dump_story(engine, seen, facts, options)
    claims: list[Claim] = []
    if logs is not None:
        claims += log_claims(recorded, logs, ends, facts, options)
    if logs is None or facts.recorded:
        claims += claims_of("journal", recorded)
        claims += [*_disagreements(recorded, engine, seen, facts, ends)]
    if dumps.symptom == "hang":
        claims += claims_of("dumps", dumps)
    claimed = [finding for finding in network if _is_claim(finding)]
    claims += _network_claims(claimed)
    claims += [*_uneven(claims, inputs)]
    settled = settle(claims)
    told = settled.told if settled is not None else Mortem(None)
    told = with_notes(told, logs, ends, facts)
    left = [finding for finding in (*inputs, *network) if finding not in claimed]
    if settled is not None and settled.primary.cause == "uneven":
        left = [finding for finding in left if finding.id != "data.uneven"]
    if dumps.symptom != "hang" and (dumps.symptom is None or told.symptom is None):
        told = replace(
            told,
            symptom=told.symptom or dumps.symptom,
            findings=(*told.findings, *dumps.findings),
        )
    elif dumps.symptom == "hang":
        remarks = [one for one in dumps.findings if one.severity is Severity.INFO]
        told = replace(told, findings=(*told.findings, *remarks))
    beside = tuple(with_neighbours(finding, facts) for finding in told.findings)
    return replace(told, findings=beside), left


def _disagreements(
    recorded: Mortem, engine: Engine, seen: Overview, facts: Facts, ends: Mapping[int, End]
) -> Iterator[Claim]:
    """Calls in which ranks differ, where open calls alone did not show it."""
    if recorded.symptom is None or any(one.id == "hang.mismatch" for one in recorded.findings):
        return
    found = recorded_disagreements(engine, seen, facts)
    symptom = "crash" if any(end.is_bad for end in ends.values()) else "hang"
    yield from claims_of("journal", Mortem(symptom, tuple(found)))


def _is_claim(finding: Finding) -> bool:
    """Whether what the library's log tells is about the job's end, and not about its speed."""
    if finding.id in _CRITICAL_ONLY:
        return finding.severity is Severity.CRITICAL
    of_end = finding.id.startswith(("hang.", "crash.", "host.")) or finding.id == "comm.error"
    return of_end and finding.severity is not Severity.INFO


def _network_claims(findings: Sequence[Finding]) -> Iterator[Claim]:
    for finding in findings:
        peers = frozenset(finding.evidence.get("peer_ranks") or ())
        for claim in claims_of("nccl", Mortem(_symptom(finding), (finding,), finding.ranks)):
            yield replace(claim, also=peers)


def _uneven(claims: Sequence[Claim], inputs: Sequence[Finding]) -> Iterator[Claim]:
    """Ranks that did not come because they got fewer batches and had left the epoch."""
    for why in inputs:
        for claim in claims:
            if why.id != "data.uneven" or claim.cause != "rank_missing":
                continue
            if not claim.ranks or not claim.ranks <= set(why.ranks):
                continue
            found = tuple(
                replace(
                    one,
                    title=say("story.uneven", told=one.title, why=why.title),
                    certainty=max(one.certainty, why.certainty, key=list(Certainty).index),
                    evidence={**one.evidence, **why.evidence, "class": "uneven"},
                    advice=(*why.advice, *one.advice),
                )
                for one in claim.told.findings
            )
            yield Claim(claim.source, "uneven", replace(claim.told, findings=found))


def _symptom(finding: Finding) -> str | None:
    if finding.id.startswith("hang."):
        return "hang"
    if finding.id == "crash.oom":
        return "oom"
    return "crash" if finding.severity is Severity.CRITICAL else None
