"""What one source says became of the job, in a shape in which sources can be held together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tracekit.analysis.basis.ends import Open
from tracekit.findings import Certainty, Finding, Severity, Words
from tracekit.findings.causes import CAUSES, cause_of_text

__all__ = ["Claim", "Mortem", "all_lines", "cause_of", "claims_of", "lines_of"]

_BY_ID = {
    "hang.missing_rank": "rank_missing", "hang.busy_rank": "rank_busy",
    "hang.stopped": "rank_stopped", "hang.gil": "rank_gil", "hang.mismatch": "mismatch",
    "hang.cycle": "cycle", "crash.oom": "gpu_oom", "crash.vanished": "vanished",
    "crash.error": "error", "crash.killed": "killed_signal", "comm.error": "closed",
    "host.limit": "host_shm", "config.device": "same_device", "config.versions": "versions",
    "config.env": "launcher",
}  # fmt: skip
"""Classes of findings whose evidence does not say it."""
_LINES = 8


@dataclass(frozen=True, slots=True)
class Mortem:
    """What became of the job: hang, oom, crash or None, and the findings about it."""

    symptom: str | None
    findings: tuple[Finding, ...] = ()
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    call: Words | None = None
    opened: Open | None = None
    phase: str | None = None
    """Where the job was, if something else than its steps tells."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A cause as one source sees it. Findings of one class stand together: a rank each, mostly."""

    source: str
    """journal, logs, kernel, scheduler, dumps or nccl."""
    cause: str
    """A class of ``findings/causes.py``."""
    told: Mortem
    """The whole story, were this source the only one."""
    also: frozenset[int] = frozenset()
    """Ranks that it is about beside those that it names: of a host, or the other end of a link."""

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that are named as the cause; none where the source cannot tell. Of one that
        vanished it is how that cannot be told, not who."""
        return frozenset(
            rank
            for finding in self.told.findings
            if finding.certainty is not Certainty.CANNOT_TELL or self.cause == "vanished"
            for rank in finding.ranks
        )

    @property
    def certainty(self) -> Certainty:
        """That of its surest finding."""
        found = [finding.certainty for finding in self.told.findings]
        return min(found, key=list(Certainty).index)

    @property
    def place(self) -> int:
        """How basic its class is: 0 comes first."""
        return list(CAUSES).index(self.cause)


def cause_of(finding: Finding) -> str:
    """The class of a finding: what its evidence says, else what follows from its id."""
    told = finding.evidence.get("class")
    if told in CAUSES:
        return str(told)
    if finding.id == "hang.missing_rank" and finding.certainty is Certainty.CANNOT_TELL:
        return "timed_out"
    if finding.id in ("crash.error", "crash.oom"):
        known = cause_of_text(str(finding.evidence.get("error") or ""))
        if known is not None:
            return known
    return _BY_ID.get(finding.id, "closed")


def claims_of(source: str, told: Mortem) -> Iterator[Claim]:
    """What a source tells as claims, one for each class of causes in it."""
    by_cause: dict[str, list[Finding]] = {}
    for finding in told.findings:
        if finding.severity is not Severity.INFO:
            by_cause.setdefault(cause_of(finding), []).append(finding)
    for cause, findings in by_cause.items():
        yield Claim(source, cause, replace(told, findings=tuple(findings)))


def lines_of(finding: Finding) -> list[str]:
    """The lines that a finding rests on, each as "file:line: text" or "file: what is in it"."""
    told = finding.evidence
    lines = [str(line) for line in told.get("lines") or ()]
    source, text = told.get("source"), told.get("text") or told.get("error")
    if isinstance(source, str) and ":" in source:
        lines.append(f"{source}: {text}" if text else source)
    place, last = told.get("last_line_source"), told.get("last_line")
    if place:
        lines.append(f"{place}: {last}")
    lines += [str(file) for file in told.get("files") or ()]
    return _unique(lines)


def all_lines(finding: Finding) -> list[str]:
    """The lines of a finding and of everything that it explains."""
    others = [
        line
        for key in ("agree", "effects", "contradicts")
        for one in finding.evidence.get(key) or ()
        for line in one["lines"]
    ]
    return [*lines_of(finding), *others]


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))[:_LINES]
