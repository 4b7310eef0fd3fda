"""Findings about ranks that make the others wait."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Ints, Tables
from tracekit.analysis.options import Options
from tracekit.analysis.slow.judge import Judgement, Suspect
from tracekit.analysis.slow.stages import StageVerdict
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say
from tracekit.findings.result import RunSummary, StragglerSummary

__all__ = ["straggler_findings", "straggler_summaries"]

_MS = 1e6
_ADVICE = {
    "data": ("data",),
    "forward": ("compute", "compute.input"),
    "backward": ("compute", "compute.input"),
    "optimizer": ("compute", "code"),
    "checkpoint": ("checkpoint",),
    "gc": ("gc",),
}


def straggler_findings(
    judgement: Judgement,
    tables: Tables,
    facts: Facts,
    run: RunSummary,
    step_ms: float,
    wait_share: float,
    options: Options,
    where: str,
) -> Iterator[Finding]:
    """One finding for each slow rank or stage, and one where the work itself is uneven."""
    if judgement.stage is not None:
        yield _stage(judgement.stage, tables, run, step_ms, options, where)
    for suspect in judgement.suspects:
        yield _straggler(suspect, tables, facts, run, step_ms, options, where)
    if judgement.imbalance is not None:
        yield Finding(
            "straggler.data_imbalance",
            Severity.WARNING,
            Certainty.LIKELY,
            say("straggler.data_imbalance", percent=100 * wait_share),
            ranks=tables.ranks,
            steps=_span(tables.labels),
            lost_ms=wait_share * step_ms * run.used_steps,
            evidence={"forward_backward_correlation": round(judgement.imbalance, 3)},
            advice=(say("advice.imbalance"),),
        )


def _straggler(
    suspect: Suspect,
    tables: Tables,
    facts: Facts,
    run: RunSummary,
    step_ms: float,
    options: Options,
    where: str,
) -> Finding:
    first, last = _span(tables.labels[suspect.places])
    mean_ms = suspect.imposed / _MS
    cause = say(f"cause.{suspect.cause}", ms=suspect.excess.get(suspect.cause, 0.0) / _MS)
    percent = 100 * suspect.share
    if len(suspect.ranks) > 1:
        title = say(
            "straggler.unit", ranks=ranks_words(suspect.ranks), ms=mean_ms, percent=percent,
            count=len(suspect.places), steps=_steps_of(suspect, run),
            phase=say(f"phase.{suspect.cause}"),
        )  # fmt: skip
    elif suspect.kind == "intermittent":
        each = float(mean_ms * _steps_of(suspect, run) / max(1, len(suspect.places)))
        title = say(
            "straggler.intermittent", rank=suspect.rank, count=len(suspect.places),
            steps=_steps_of(suspect, run), each=each, percent=percent, cause=cause,
        )  # fmt: skip
    elif suspect.rules == ("mean",):
        title = say("straggler.rank.mean", rank=suspect.rank, ratio=suspect.ratio, cause=cause)
    elif suspect.confirmed:
        title = say(
            "straggler.rank", rank=suspect.rank, ms=suspect.share * step_ms, percent=percent,
            cause=cause,
        )  # fmt: skip
    else:
        title = say(
            "straggler.rank.unsure", rank=suspect.rank, ms=suspect.share * step_ms,
            percent=percent, steps=run.used_steps, cause=cause,
        )  # fmt: skip
    return Finding(
        "straggler.intermittent" if suspect.kind == "intermittent" else "straggler.rank",
        _severity(suspect, run, options),
        Certainty.LIKELY if suspect.confirmed else Certainty.CANNOT_TELL,
        title,
        ranks=suspect.ranks,
        steps=(first, last),
        lost_ms=mean_ms * _steps_of(suspect, run),
        evidence={
            "share_of_step": round(suspect.share, 4),
            "mean_ratio": round(suspect.ratio, 3),
            "late_steps": len(suspect.places),
            "steps": _steps_of(suspect, run),
            "excess_ms": {k: round(v / _MS, 3) for k, v in suspect.excess.items() if v},
            "median_step_ms": round(step_ms, 3),
        },
        advice=_advice(suspect, facts, where, first, last),
        rules=suspect.rules,
        imposed_wait_ms=mean_ms,
        p=suspect.p,
        cause=suspect.cause,
    )


def _steps_of(suspect: Suspect, run: RunSummary) -> int:
    """Steps that a suspect's mean is of."""
    if suspect.kind == "intermittent":
        return run.steps - run.warm_up_steps
    return run.used_steps


def _severity(suspect: Suspect, run: RunSummary, options: Options) -> Severity:
    long_enough = _steps_of(suspect, run) >= options.critical_steps
    if suspect.confirmed and long_enough and suspect.share >= options.straggler_critical:
        return Severity.CRITICAL
    if suspect.kind == "intermittent" and suspect.share < options.intermittent_warning:
        return Severity.INFO
    return Severity.WARNING


def _advice(suspect: Suspect, facts: Facts, where: str, first: int, last: int) -> tuple[str, ...]:
    of = facts.of(suspect.rank)
    values = {
        "rank": suspect.rank,
        "host": of.host or "its host",
        "pid": of.identity.get("pid", "PID"),
    }
    keys = _ADVICE.get(suspect.cause, ("code",))
    words = [say(f"advice.{key}", **values) for key in keys]
    if suspect.cause == "unknown":
        words.append(say("advice.series", run=where, first=first, last=last))
    if not suspect.confirmed:
        words.append(say("advice.more_steps"))
    return tuple(words)


def _stage(
    stage: StageVerdict,
    tables: Tables,
    run: RunSummary,
    step_ms: float,
    options: Options,
    where: str,
) -> Finding:
    first, last = _span(tables.labels[stage.places])
    numbers = ", ".join(map(str, stage.stages))
    title = say(
        "straggler.stage" if stage.confirmed else "straggler.stage.unsure",
        stages=say("stages.one" if len(stage.stages) == 1 else "stages.many", listed=numbers),
        of=stage.of,
        ranks=ranks_words(stage.ranks),
        ms=stage.share * step_ms,
        percent=100 * stage.share,
        steps=run.used_steps,
        cause=say(f"phase_name.{stage.cause}"),
    )
    critical = (
        stage.confirmed
        and run.used_steps >= options.critical_steps
        and stage.share >= options.straggler_critical
    )
    return Finding(
        "straggler.stage",
        Severity.CRITICAL if critical else Severity.WARNING,
        Certainty.LIKELY if stage.confirmed else Certainty.CANNOT_TELL,
        title,
        ranks=stage.ranks,
        steps=(first, last),
        lost_ms=stage.imposed / _MS * run.used_steps,
        evidence={
            "stages": list(stage.stages),
            "own_work_ms": [round(own / _MS, 3) for own in stage.own],
            "share_of_step": round(stage.share, 4),
            "late_steps": len(stage.places),
            "steps": run.used_steps,
            "excess_ms": {k: round(v / _MS, 3) for k, v in stage.excess.items() if v},
            "median_step_ms": round(step_ms, 3),
        },
        advice=(
            say("advice.stage"),
            say("advice.stage.hosts"),
            *((say("advice.more_steps"),) if not stage.confirmed else ()),
        ),
        rules=("peer",),
        imposed_wait_ms=stage.imposed / _MS,
        p=stage.p,
        cause=stage.cause,
    )


def straggler_summaries(judgement: Judgement | None) -> tuple[StragglerSummary, ...]:
    """The same for the list of stragglers."""
    if judgement is None:
        return ()
    stages = [_stage_summary(judgement.stage)] if judgement.stage is not None else []
    return (*stages, *map(_summary, judgement.suspects))


def _stage_summary(stage: StageVerdict) -> StragglerSummary:
    return StragglerSummary(
        stage.ranks[0],
        "stage",
        stage.cause,
        stage.share,
        stage.imposed / _MS,
        ("peer",),
        stage.p,
        (Certainty.LIKELY if stage.confirmed else Certainty.CANNOT_TELL).value,
        {phase: ns / _MS for phase, ns in stage.excess.items()},
        stage.ranks,
    )


def _summary(suspect: Suspect) -> StragglerSummary:
    return StragglerSummary(
        suspect.rank,
        suspect.kind,
        suspect.cause,
        suspect.share,
        suspect.imposed / _MS,
        suspect.rules,
        suspect.p,
        (Certainty.LIKELY if suspect.confirmed else Certainty.CANNOT_TELL).value,
        {phase: ns / _MS for phase, ns in suspect.excess.items()},
        suspect.ranks,
    )


def _span(steps: Ints) -> tuple[int, int]:
    return (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
