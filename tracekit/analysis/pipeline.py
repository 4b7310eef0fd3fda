"""The analysis from end to end: an engine with the tables of a run in, the verdict out."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from tracekit.analysis.answers import answers
from tracekit.analysis.basis.clocks import align
from tracekit.analysis.basis.ends import End, read_ends
from tracekit.analysis.basis.facts import Facts, read_facts, with_facts
from tracekit.analysis.basis.sampling import looked_into
from tracekit.analysis.basis.steps import Steps, choose_steps
from tracekit.analysis.basis.tables import Overview, Tables, overview
from tracekit.analysis.collect import collect
from tracekit.analysis.gaps import clock_findings, gap_findings
from tracekit.analysis.network.facts import with_network
from tracekit.analysis.network.inspector import measured_collectives
from tracekit.analysis.network.links import with_late_ranks
from tracekit.analysis.network.verdicts import network_findings, symptom_of
from tracekit.analysis.options import Options
from tracekit.analysis.overhead import overhead
from tracekit.analysis.post_mortem.claims import Mortem
from tracekit.analysis.post_mortem.logs import Logs, read_logs, with_logs
from tracekit.analysis.post_mortem.verdict import judge_end
from tracekit.analysis.record import Record
from tracekit.analysis.roles.peers import Peers, find_peers
from tracekit.analysis.roles.traffic import read_traffic
from tracekit.analysis.slow.judge import judge
from tracekit.analysis.slow.share_verdicts import share_findings
from tracekit.analysis.slow.verdicts import straggler_findings, straggler_summaries
from tracekit.analysis.summaries import (
    rank_summaries,
    samples_per_second,
    shares_of,
    step_times,
    summarize_collectives,
    what_if,
)
from tracekit.analysis.wrong.checkpoints import checkpoint_findings
from tracekit.analysis.wrong.cluster import cluster_findings
from tracekit.analysis.wrong.inputs import input_findings
from tracekit.analysis.wrong.numerics import numeric_findings
from tracekit.analysis.wrong.reductions import reduction_findings
from tracekit.analysis.wrong.replicas import replica_findings
from tracekit.analysis.wrong.setup import setup_of
from tracekit.analysis.wrong.starts import start_findings
from tracekit.dataset.coverage import Coverage
from tracekit.dataset.engine import Engine
from tracekit.findings import Certainty, Finding, Severity, say
from tracekit.findings.result import (
    Analysis,
    Clock,
    CoverageSummary,
    Questions,
    RunSummary,
)

__all__ = ["analyze"]

_SLOW = ("straggler.", "comm.", "data.bound")
_WRONG = ("config.", "numeric.", "checkpoint.", "data.")
_DETECTORS = (
    numeric_findings,
    cluster_findings,
    replica_findings,
    start_findings,
    reduction_findings,
    checkpoint_findings,
)
"""What rests on facts and events alone, in the order in which findings of one weight are told."""


def analyze(
    engine: Engine,
    coverage: Coverage | None = None,
    options: Options | None = None,
    where: str = "RUN",
) -> Analysis:
    """Analyze the last attempt of the run whose tables spans, events and facts the engine has.

    ``where`` is how the run is called in the commands that are advised.
    """
    options = options or Options()
    seen = with_logs(engine, overview(engine))
    seen = with_network(engine, seen)
    bare = seen is None
    seen = with_facts(engine, seen)
    if seen is None:
        return _nothing(_covered(coverage or Coverage(), None))
    covered = _covered(coverage or Coverage(), seen.attempt)
    facts = read_facts(engine, seen.attempt)
    absent = max(0, facts.world_size - len(seen.ranks))
    clock, corrections = align(engine, seen, facts)
    known = find_peers(seen.ranks, read_traffic(engine, seen, facts), facts, clock.aligned)
    tables = collect(engine, seen, options, absent, known, corrections)
    steps = choose_steps(tables, options) if tables is not None else None
    run = _run(seen, facts, tables, steps)
    ends = read_ends(engine, seen, facts)
    times = step_times(tables, steps) if tables is not None and steps is not None else None
    median_ns = times.median * 1e6 if times is not None else None
    record = Record(
        engine, facts, ends, known, run, covered, tables.shifts if tables is not None else {},
        seen.communications, where, options,
    )  # fmt: skip
    logs = read_logs(engine, seen.attempt)
    network = list(network_findings(record))
    inputs = list(input_findings(record))
    mortem, left = judge_end(engine, seen, facts, ends, logs, network, inputs, median_ns, options)
    shares, judgement, peers, looked = None, None, None, steps
    findings = list(mortem.findings)
    if tables is not None and steps is not None and len(steps.used):
        peers = known
        looked = looked_into(engine, seen.attempt, seen.ranks, tables, steps)
        shares = shares_of(tables, looked)
        error_ns = (clock.error_us or 0.0) * 1e3
        judgement = judge(tables, looked, peers, options, error_ns)
        step_ms = float(np.median(tables.values["wall"][looked.used].mean(axis=1))) / 1e6
        if judgement is not None:
            findings += straggler_findings(
                judgement, tables, facts, run, step_ms, shares.wait, options, where
            )
        findings += _undecided(peers, tables)
        suspects = judgement.suspects if judgement is not None else ()
        stage = judgement.stage if judgement is not None else None
        of = replace(run, used_steps=len(looked.used))
        told = share_findings(shares, suspects, stage, tables, facts, of, step_ms, options, where)
        findings += [_aside(finding) if mortem.symptom else finding for finding in told]
    for detector in _DETECTORS:
        findings += detector(record)
    findings += left
    findings = with_late_ranks(findings)
    if seen.first_step is not None or seen.communications:
        findings += clock_findings(clock)
    findings += gap_findings(covered, run, tables, steps, where)
    findings += [_no_spans()] if bare else []
    findings.sort(key=lambda finding: -finding.severity.weight)
    symptom = mortem.symptom or ("abnormal" if bare else _symptom(findings))
    return Analysis(
        symptom,
        _phase(mortem, ends, tables, steps, logs),
        run,
        answers(mortem, judgement, peers, shares, tables, looked, facts),
        clock,
        covered,
        times,
        samples_per_second(facts, times),
        shares,
        rank_summaries(seen.ranks, facts, tables, looked, judgement),
        straggler_summaries(judgement),
        what_if(tables, looked, judgement, peers),
        (
            *(summarize_collectives(tables, facts) if tables is not None else ()),
            *measured_collectives(engine, seen.attempt),
        ),
        tuple(findings),
        overhead(seen, facts, tables, steps, options),
        {"corrections": corrections},
        setup_of(record),
    )


def _covered(coverage: Coverage, attempt: int | None) -> CoverageSummary:
    """What the dataset says about its files, of one attempt."""
    return CoverageSummary(
        coverage.files,
        tuple((str(path), reason) for path, reason in coverage.skipped),
        coverage.dropped_spans,
        coverage.open_spans,
        coverage.torn_slots,
        {one.rank: one.stems for one in coverage.duplicate_ranks if one.attempt == attempt},
        {
            one.rank: f"{one.host}:{one.path}"
            for one in coverage.elsewhere
            if one.attempt == attempt
        },
        tuple(asdict(one) for one in coverage.exports if one.attempt == attempt),
    )


def _nothing(coverage: CoverageSummary) -> Analysis:
    """The verdict over a run without a single span."""
    run = RunSummary("", 0, (), (), 0, 0.0, 0)
    return Analysis(
        "abnormal",
        "startup",
        run,
        Questions(),
        Clock(True, None),
        coverage,
        findings=(_no_spans(),),
    )


def _no_spans() -> Finding:
    return Finding(
        "coverage.partial", Severity.WARNING, Certainty.PROVEN, say("coverage.partial.nothing")
    )


def _run(
    seen: Overview,
    facts: Facts,
    tables: Tables | None,
    steps: Steps | None,
) -> RunSummary:
    world = max(facts.world_size, max(seen.ranks, default=-1) + 1)
    missing = set(range(world)) - set(seen.ranks)
    hosts = {facts.of(rank).host for rank in seen.ranks} or {""}
    complete = len(steps.complete) if steps is not None else 0
    return RunSummary(
        seen.run_id,
        world,
        seen.ranks,
        tuple(sorted(missing)),
        complete,
        (max(seen.last_ns.values()) - seen.first_ns) / 1e9,
        len(hosts),
        seen.attempt,
        seen.attempts,
        int(tables.labels.min()) if tables is not None and len(tables.steps) else None,
        int(tables.labels.max()) if tables is not None and len(tables.steps) else None,
        len(steps.used) if steps is not None else 0,
        steps.warm_up if steps is not None else 0,
        next(
            (str(told) for rank in seen.ranks if (told := facts.of(rank).identity.get("label"))),
            None,
        ),
    )


def _undecided(peers: Peers, tables: Tables) -> list[Finding]:
    """Why no rank was judged, where that is because of roles (clocks have their own finding)."""
    if peers.unknown != "roles":
        return []
    return [
        Finding(
            "straggler.stage",
            Severity.INFO,
            Certainty.CANNOT_TELL,
            say("straggler.unknown_roles"),
            ranks=tables.ranks,
            advice=(say("advice.roles"),),
        )
    ]


def _aside(finding: Finding) -> Finding:
    """What is not worth a thought while the job hangs or is dead."""
    return replace(finding, severity=Severity.INFO)


def _symptom(findings: list[Finding]) -> str:
    """What the gravest finding is about, of those that are about the training."""
    for finding in findings:
        if finding.severity is not Severity.INFO:
            if (symptom := symptom_of(finding)) is not None:
                return symptom
            if finding.id.startswith(_SLOW):
                return "slow"
            if finding.id.startswith(_WRONG):
                return "abnormal"
    return "healthy"


def _phase(
    mortem: Mortem,
    ends: dict[int, End],
    tables: Tables | None,
    steps: Steps | None,
    logs: Logs | None,
) -> str:
    """Where the job was when what it is about happened: before, in or after its steps."""
    if mortem.phase is not None:
        return mortem.phase
    began = tables is not None and len(tables.steps) > 0
    if not began or steps is None:
        return logs.phase if logs is not None and logs.phase else "startup"
    if mortem.symptom is None:
        return "training"
    if mortem.opened is not None:
        inside = mortem.opened.step is not None
        return "training" if inside else "teardown" if len(steps.complete) else "startup"
    last = [end.inside for rank, end in ends.items() if rank in mortem.culprits]
    if any(one is not None and one.step is not None for one in last):
        return "training"
    return "teardown" if len(steps.complete) else "startup"
