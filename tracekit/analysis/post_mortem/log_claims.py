"""What the logs claim became of the job, and what they add to the verdict of all sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tracekit.analysis.basis.ends import End
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.post_mortem import log_notes as notes
from tracekit.analysis.post_mortem.claims import Claim, Mortem, claims_of
from tracekit.analysis.post_mortem.first_errors import Case
from tracekit.analysis.post_mortem.logs import Logs

__all__ = ["log_claims", "with_notes"]


def log_claims(
    recorded: Mortem, logs: Logs | None, ends: Mapping[int, End], facts: Facts
) -> Iterator[Claim]:
    """What the logs claim, and what the records do once the logs have been heard.

    What ranks recorded themselves counts more: logs change such a verdict only where they tell
    of a trouble of the accused rank's own, or where there was none.
    """
    journal = any(of.heartbeat_ns for of in facts.ranks.values())
    own = "journal" if journal else "logs"
    if logs is None:
        yield from claims_of(own, recorded)
        return
    case = Case(recorded, logs, ends, facts)
    told_by_logs = False
    for source, told in (
        ("kernel", case.killed_for_memory()),
        ("logs", case.own_trouble()),
        ("logs", case.mismatch()),
        ("logs", case.reported_missing()),
        ("scheduler", case.scheduler()),
    ):
        if told is not None:
            told_by_logs = True
            yield from claims_of(source, told)
    same = recorded.symptom != "hang" or recorded.findings[0].id == "hang.mismatch"
    if told_by_logs and not journal and same:
        return  # how ranks ended was read from the same lines
    refined = (
        case.quoted()
        or case.recorded()
        or case.waited()
        or case.effects()
        or case.unknown_rank()
        or case.ended_together()
    )
    yield from claims_of(own, refined or recorded)


def with_notes(told: Mortem, logs: Logs | None, ends: Mapping[int, End], facts: Facts) -> Mortem:
    """The verdict with the first error of every rank, and what else only logs tell."""
    if logs is None:
        return told
    ranks = Case(told, logs, ends, facts).ranks
    verdicts = [notes.retold(finding, logs) for finding in told.findings]
    listed = list(notes.first_errors(logs, told, ranks))
    recorded = any(of.heartbeat_ns for of in facts.ranks.values())
    if recorded and verdicts:  # the records tell the story; logs are evidence
        verdicts[0] = notes.with_evidence(verdicts[0], listed)
        listed = []
    found = [*verdicts, *listed, *notes.xids(logs, told), *notes.late_logs(logs)]
    return replace(told, findings=tuple(found))
