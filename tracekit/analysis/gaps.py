"""Findings about what the record lacks: ranks, files, spans, clocks, step numbers."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.analysis.basis.steps import Steps
from tracekit.analysis.basis.tables import Tables
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say
from tracekit.findings.result import Clock, CoverageSummary, RunSummary

__all__ = ["clock_findings", "gap_findings"]


def gap_findings(
    coverage: CoverageSummary,
    run: RunSummary,
    tables: Tables | None,
    steps: Steps | None,
    where: str,
) -> Iterator[Finding]:
    """What is missing, and what was put right."""
    missing = run.missing_ranks
    if missing:
        elsewhere = dict(sorted(coverage.elsewhere.items()))
        advice = [say("advice.collect", run=where)] if elsewhere else []
        yield Finding(
            "coverage.partial",
            Severity.WARNING,
            Certainty.PROVEN,
            say(
                "coverage.partial.ranks", ranks=len(missing), world_size=run.world_size,
                listed=ranks_words(missing),
            ),
            ranks=missing,
            evidence={"missing_ranks": list(missing), "elsewhere": elsewhere},
            advice=tuple(advice),
        )  # fmt: skip
    if coverage.skipped:
        path, reason = coverage.skipped[0]
        yield Finding(
            "coverage.partial",
            Severity.WARNING,
            Certainty.PROVEN,
            say(
                "coverage.partial.files", count=len(coverage.skipped),
                first=f"{path}: {reason}",
            ),
            evidence={"skipped": [list(one) for one in coverage.skipped[:20]]},
            advice=(say("advice.files", run=where),),
        )  # fmt: skip
    if coverage.dropped_spans:
        yield _partial("dropped", {"count": coverage.dropped_spans, "reason": "quota"})
    if tables is not None and steps is not None and not missing:
        incomplete = int(tables.incomplete[steps.complete].sum())
        if incomplete:
            yield _partial("collectives", {"count": incomplete})
    for rank, stems in coverage.duplicate_ranks.items():
        yield Finding(
            "coverage.duplicate_rank",
            Severity.WARNING,
            Certainty.PROVEN,
            say("coverage.duplicate_rank", count=len(stems), rank=rank, kept=stems[0]),
            ranks=(rank,),
            evidence={"processes": list(stems)},
            advice=(say("advice.duplicate"),),
        )
    for rank, shift in sorted(tables.shifts.items() if tables is not None else ()):
        if shift:
            yield Finding(
                "coverage.step_shift",
                Severity.INFO,
                Certainty.PROVEN,
                say("coverage.step_shift", rank=rank, shift=shift),
                ranks=(rank,),
                evidence={"shift": shift},
            )


def _partial(what: str, evidence: dict[str, object]) -> Finding:
    return Finding(
        "coverage.partial",
        Severity.INFO,
        Certainty.PROVEN,
        say(f"coverage.partial.{what}", **evidence),
        evidence=evidence,
    )


def clock_findings(clock: Clock) -> Iterator[Finding]:
    """Clocks that cannot be compared."""
    if not clock.aligned:
        hosts = ", ".join(dict.fromkeys(domain.host for domain in clock.domains))
        yield Finding(
            "clock.unaligned",
            Severity.WARNING,
            Certainty.CANNOT_TELL,
            say("clock.unaligned", count=len(clock.domains), hosts=hosts),
            ranks=tuple(sorted(rank for domain in clock.domains for rank in domain.ranks)),
            evidence={"domains": len(clock.domains)},
            advice=(say("advice.clock"),),
        )
