"""What the logs claim became of the job, and what they add to the verdict of all sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tracekit.analysis.basis.ends import End, Open
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.options import Options
from tracekit.analysis.post_mortem import log_notes as notes
from tracekit.analysis.post_mortem.claims import Claim, Mortem, claims_of
from tracekit.analysis.post_mortem.deaths import post_mortem
from tracekit.analysis.post_mortem.first_errors import Case
from tracekit.analysis.post_mortem.kernel import gpu_faults, killed_for_memory
from tracekit.analysis.post_mortem.logs import Logs

__all__ = ["log_claims", "with_last_lines", "with_notes"]


def log_claims(
    recorded: Mortem, logs: Logs, ends: Mapping[int, End], facts: Facts, options: Options
) -> Iterator[Claim]:
    """What the logs claim. ``recorded`` is what ends and spans tell: of the logs themselves, where
    ranks recorded nothing, else of the ranks' own records, which are then a source beside."""
    beside = facts.recorded
    case = Case(recorded, logs, ends, facts)
    told_by_logs = False
    for source, told in (
        ("kernel", killed_for_memory(case)),
        *(("kernel", one) for one in gpu_faults(case)),
        ("logs", case.own_trouble()),
        ("logs", case.mismatch()),
        ("logs", case.reported_missing()),
        ("scheduler", case.scheduler()),
    ):
        if told is not None:
            told_by_logs = True
            yield from claims_of(source, told)
    if beside:
        yield from _beside(recorded, case, logs, facts, options)
        return
    same = recorded.symptom != "hang" or recorded.findings[0].id == "hang.mismatch"
    if told_by_logs and same:
        return  # how ranks ended was read from the same lines
    refined = (
        case.quoted()
        or case.recorded()
        or case.waited()
        or case.effects()
        or case.unknown_rank()
        or case.ended_together()
    )
    yield from claims_of("logs", refined or recorded)


def _beside(
    recorded: Mortem, case: Case, logs: Logs, facts: Facts, options: Options
) -> Iterator[Claim]:
    """What logs say of calls beside what ranks recorded; by silence where these name nobody."""
    waited, known = _waits(logs, facts)
    stall = post_mortem(waited, known, None, options)
    if stall.symptom == "hang":
        told = Case(stall, logs, waited, known).recorded()
        yield from claims_of("logs", told or stall)
    elif recorded.symptom != "hang" and not recorded.culprits:
        told = case.waited() or case.effects() or case.unknown_rank()
        if told is not None:
            yield from claims_of("logs", told)


def _waits(logs: Logs, facts: Facts) -> tuple[dict[int, End], Facts]:
    """The calls that logs tell of, by the logs' own clocks and with the logs' own groups."""
    ends: dict[int, End] = {}
    groups = dict(facts.groups)
    for wait in logs.waits:
        end = ends.setdefault(wait.rank, End(wait.rank, "unknown", wait.end_ns))
        end.time_ns = max(end.time_ns, wait.end_ns)
        call = Open(
            "comm", wait.op, None, wait.start_ns, wait.op, wait.group, wait.seq,
            len(wait.members) or None, rank=wait.rank,
        )  # fmt: skip
        if wait.is_open:
            end.opened.append(call)
        else:
            end.behind.add(call.key)
        if wait.members:
            groups[wait.group] = wait.members
    return ends, replace(facts, groups=groups)


def with_last_lines(told: Mortem, logs: Logs) -> Mortem:
    """What records tell, with the last lines of the ranks that it is about."""
    found = []
    for finding in told.findings:
        finding = notes.retold(finding, logs)
        last = logs.last.get(finding.ranks[0]) if len(finding.ranks) == 1 else None
        if last:
            more = {"last_line": last.get("text"), "last_line_source": last.get("source")}
            finding = replace(finding, evidence={**finding.evidence, **more})
        found.append(finding)
    return replace(told, findings=tuple(found))


def with_notes(told: Mortem, logs: Logs | None, ends: Mapping[int, End], facts: Facts) -> Mortem:
    """The verdict with the first error of every rank, and what else only logs tell."""
    if logs is None:
        return told
    ranks = Case(told, logs, ends, facts).ranks
    verdicts = [*told.findings]
    listed = list(notes.first_errors(logs, told, ranks))
    if facts.recorded and verdicts:  # the records tell the story; logs are evidence
        verdicts[0] = notes.with_evidence(verdicts[0], listed)
        listed = []
    found = [*verdicts, *listed, *notes.xids(logs, told), *notes.late_logs(logs)]
    return replace(told, findings=tuple(found))
