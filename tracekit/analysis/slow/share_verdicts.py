"""Findings about where the time of a step goes: communication that nothing hides, and input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.basis.tables import Tables
from tracekit.analysis.options import Options
from tracekit.analysis.slow.judge import Suspect
from tracekit.analysis.slow.stages import StageVerdict
from tracekit.findings import Certainty, Finding, Severity, ranks_words, say
from tracekit.findings.result import RunSummary, Shares

__all__ = ["share_findings"]

_MS = 1e6


def share_findings(
    shares: Shares,
    suspects: Sequence[Suspect],
    stage: StageVerdict | None,
    tables: Tables,
    facts: Facts,
    run: RunSummary,
    step_ms: float,
    options: Options,
    where: str,
) -> Iterator[Finding]:
    """Findings about the shares of communication and input, the larger one first.

    What a rank that is named already makes the others wait is its doing, not the network's.
    """
    if run.used_steps < options.shares_steps:
        return
    found = [
        _communication(shares, suspects, stage, tables, facts, options, where),
        _data(shares, suspects, tables, options, step_ms),
    ]
    evidence = {
        name: round(value, 4)
        for name in ("compute", "exposed_communication", "data", "wait", "queue", "transfer")
        for value in [getattr(shares, name)]
    }
    if shares.utilization is not None:
        evidence["utilization"] = round(shares.utilization, 4)
    for finding, share in sorted(filter(None, found), key=lambda item: -item[1]):
        yield replace(
            finding,
            ranks=tables.ranks,
            steps=(int(tables.labels.min()), int(tables.labels.max())),
            lost_ms=share * step_ms * run.used_steps,
            evidence={**finding.evidence, **evidence},
        )


def _communication(
    shares: Shares,
    suspects: Sequence[Suspect],
    stage: StageVerdict | None,
    tables: Tables,
    facts: Facts,
    options: Options,
    where: str,
) -> tuple[Finding, float] | None:
    share = shares.exposed_communication
    low = (shares.utilization or 1.0) < options.utilization_warning and share > shares.data
    if share < options.communication_warning and not low:
        return None
    part = max(("wait", "queue", "transfer"), key=lambda name: getattr(shares, name))
    others = 1 - 1 / len(tables.ranks)
    rest = share - others * sum(suspect.share for suspect in suspects if "peer" in suspect.rules)
    named = [rank for suspect in suspects for rank in suspect.ranks]
    if stage is not None:
        rest -= (1 - len(stage.ranks) / len(tables.ranks)) * stage.share
        named += [rank for rank in stage.ranks if rank not in named]
    crowd = crowded(tables.ranks, facts)
    values = {"percent": 100 * share, "utilization": 100 * (shares.utilization or 0.0)}
    if named and rest < options.communication_warning:
        explained = say("comm.share.explained", ranks=ranks_words(named), **values)
        severity, title = Severity.INFO, explained
        advice: tuple[str, ...] = ()
    else:
        key = "comm.share" if share >= options.communication_warning else "comm.share.utilization"
        severity, title = Severity.WARNING, say(key, largest=say(f"largest.{part}"), **values)
        how = _by_tcp(tables.ranks, facts) if part == "transfer" else ""
        advice = (say(f"advice.{part}{how}", run=where),)
        if crowd is not None:
            ranks, cores = crowd
            title = say("comm.share.crowded", ranks=ranks, cores=cores, **values)
            advice = (say("advice.crowded", cores=cores),)
        elif rest >= options.communication_critical:
            severity = Severity.CRITICAL
    told = {"not_explained_by_stragglers": round(rest, 4)}
    return Finding(
        "comm.share", severity, Certainty.PROVEN, title, evidence=told, advice=advice
    ), share  # fmt: skip


def _by_tcp(ranks: Sequence[int], facts: Facts) -> str:
    """Which words are for ranks whose collectives go by TCP for certain; empty for others."""
    backends = set(facts.backends.values())
    if backends == {"gloo"}:
        return ".tcp"
    devices = [facts.of(rank).last("strategy").get("devices") for rank in ranks]
    on_cpus = all(isinstance(one, list) and one and "GPU" not in str(one) for one in devices)
    return ".grpc" if backends == {"tensorflow"} and on_cpus else ""


def crowded(ranks: Sequence[int], facts: Facts) -> tuple[int, int] | None:
    """How many ranks share how many cores of one host, where they are fewer than ranks.

    A rank that waits for a core looks, to all others, like a slow network.
    """
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        of = facts.of(rank)
        cores = of.identity.get("cores")
        if isinstance(cores, int) and cores > 0:
            hosts.setdefault(of.host, []).append(cores)
    for cores_of in hosts.values():
        if len(cores_of) > max(cores_of):
            return len(cores_of), max(cores_of)
    return None


def _data(
    shares: Shares,
    suspects: Sequence[Suspect],
    tables: Tables,
    options: Options,
    step_ms: float,
) -> tuple[Finding, float] | None:
    late = sum(
        s.excess.get("data", 0.0) for s in suspects if s.cause == "data" and s.kind == "rank"
    )
    rest = shares.data - late / _MS / step_ms / len(tables.ranks)
    low = (shares.utilization or 1.0) < options.utilization_warning
    low = low and rest > shares.exposed_communication
    if rest < options.data_warning and not low:
        return None
    values = {"percent": 100 * shares.data, "utilization": 100 * (shares.utilization or 0.0)}
    key = "data.bound" if rest >= options.data_warning else "data.bound.utilization"
    return Finding(
        "data.bound",
        Severity.WARNING,
        Certainty.PROVEN,
        say(key, **values),
        advice=(say("advice.loader"),),
    ), shares.data
