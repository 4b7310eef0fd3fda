"""The verdict for a terminal, read at 3 a.m.: what it is, who, what to type next, then the rest."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit.findings import Finding, Severity, Words, say, translator
from tracekit.findings.result import Analysis, CollectiveSummary, Overhead, RankSummary, Setup
from tracekit.report._bandwidth import bandwidth_table

__all__ = ["text"]

Translate = Callable[[str], str]

_STYLE = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_MARK = {Severity.CRITICAL: "●", Severity.WARNING: "●", Severity.INFO: "○"}
_SYMPTOM_STYLE = {"healthy": "bold green", "slow": "bold yellow"}
_RANKS = 16
_COLLECTIVES = 6
_CLASSES = (
    "compute", "exposed_communication", "data", "checkpoint", "eval", "compile", "gc", "other",
)  # fmt: skip
_BAR = 24
_LINES, _LONG = 2, 150
"""Lines that a finding shows of those it rests on, and how much of each."""


def text(
    analysis: Analysis, width: int = 100, color: bool = False, language: str | None = None
) -> str:
    """The report as text; with ``color`` it carries the escapes of a terminal."""
    translate = translator(language)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    for part in _parts(analysis, translate):
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(analysis: Analysis, translate: Translate) -> Iterable[RenderableType]:
    yield _head(analysis, translate)
    yield Text(_scope(analysis, translate), style="dim")
    yield ""
    yield _verdict(analysis, translate)
    if analysis.shares is not None:
        yield ""
        yield from _shares(analysis, translate)
    if any(rank.own_work_ms is not None for rank in analysis.ranks):
        yield ""
        yield _ranks(analysis, translate)
    recorded = tuple(one for one in analysis.collectives if one.source == "spans")
    if recorded and analysis.shares is not None:
        yield ""
        yield _collectives(recorded, translate)
    measured = [one for one in analysis.collectives if one.source != "spans"]
    if measured:
        yield ""
        yield bandwidth_table(measured, translate, _size)
    yield ""
    if analysis.setup is not None:
        yield Text(_setup(analysis.setup, translate), style="dim")
    if analysis.overhead is not None:
        yield Text(_overhead(analysis.overhead, translate), style="dim")
    yield Text(_coverage(analysis, translate), style="dim")
    for told in analysis.coverage.exports:
        yield Text(_export(told, translate), style="dim")


def _head(analysis: Analysis, translate: Translate) -> Text:
    symptom = translate(say(f"symptom.{analysis.symptom}"))
    phase = translate(say(f"phase.{analysis.phase}"))
    line = Text()
    line.append(symptom, style=_SYMPTOM_STYLE.get(analysis.symptom, "bold red"))
    line.append(translate(say("report.phase", phase=phase)))
    return line


def _scope(analysis: Analysis, translate: Translate) -> str:
    run = analysis.run
    ranks = run.world_size if not run.missing_ranks else f"{len(run.ranks)}/{run.world_size}"
    key = "report.ranks.one" if run.hosts <= 1 else "report.ranks"
    parts = [say("report.run", id=run.label or run.id), say(key, ranks=ranks, hosts=run.hosts)]
    if run.attempts > 1:
        parts.append(say("report.attempt", attempt=run.attempt, attempts=run.attempts))
    if run.steps:
        parts.append(
            say("report.steps", used=run.used_steps, steps=run.steps, warm_up=run.warm_up_steps)
        )
    if analysis.step_ms is not None:
        times = analysis.step_ms
        parts.append(say("report.median", median=times.median, p95=times.p95, max=times.max))
    return " · ".join(translate(part) for part in parts)


def _verdict(analysis: Analysis, translate: Translate) -> RenderableType:
    """The findings with what to do next, the worst first."""
    if not analysis.findings:
        return Text(translate(say("report.healthy")))
    parts: list[RenderableType] = []
    if all(finding.severity is Severity.INFO for finding in analysis.findings):
        parts.append(Text(translate(say("report.healthy"))))
    parts += [_finding(finding, translate) for finding in analysis.findings]
    return Group(*parts)


def _finding(finding: Finding, translate: Translate) -> RenderableType:
    style = _STYLE[finding.severity]
    title = translate(finding.title)
    line = Table.grid(padding=(0, 1))
    line.add_row(
        Text(_MARK[finding.severity], style=style),
        Text(title[:1].upper() + title[1:], style="dim" if style == "dim" else "bold"),
    )
    told = [finding.id, translate(say(f"certainty.{finding.certainty.value}"))]
    if finding.p is not None:
        told.append(f"p {finding.p:.2g}")
    if finding.lost_ms:
        told.append(translate(say("report.lost", seconds=finding.lost_ms / 1e3)))
    details: list[RenderableType] = [Text(" · ".join(told), style="dim")]
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    shown = finding.severity is not Severity.INFO
    seen = list(finding.evidence.get("lines") or ()) if shown else []
    for number, place in enumerate(seen[:_LINES]):
        table.add_row(translate(say("report.seen")) if not number else "", str(place)[:_LONG])
    for number, advice in enumerate(finding.advice):
        table.add_row(translate(say("report.next")) if not number else "", translate(advice))
    if finding.advice or seen:
        details.append(table)
    return Group(line, Padding(Group(*details), (0, 0, 0, 2)))


def _shares(analysis: Analysis, translate: Translate) -> Iterable[RenderableType]:
    shares = analysis.shares
    assert shares is not None
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for name in _CLASSES:
        share = getattr(shares, name)
        if share < 0.0005 and name not in ("compute", "exposed_communication"):
            continue
        note = ""
        if name == "exposed_communication" and share:
            parts = [
                f"{translate(say(f'class.{part}'))} {100 * getattr(shares, part):.1f}"
                for part in ("wait", "queue", "transfer")
                if getattr(shares, part) >= 0.0005
            ]
            hidden = shares.communication_total - share
            if hidden >= 0.001:
                parts.append(translate(say("report.hidden", percent=100 * hidden)))
            note = ", ".join(parts)
        elif name == "compute" and shares.utilization is not None:
            note = translate(say("report.utilization", percent=100 * shares.utilization))
        bar = "█" * round(share * _BAR)
        table.add_row(f"  {translate(say(f'class.{name}'))}", f"{100 * share:.1f} %", bar, note)
    yield Text(translate(say("report.shares")), style="bold")
    yield table


def _ranks(analysis: Analysis, translate: Translate) -> RenderableType:
    several_hosts = analysis.run.hosts > 1
    met = any(rank.imposed_wait_ms is not None for rank in analysis.ranks)
    table = _table(translate, "report.rank_table")
    columns = ["rank", *(["host"] if several_hosts else []), "own", "ratio"]
    columns += ["late", "last", "imposed", "waits"] if met else []
    for name in columns:
        left = name == "host"
        table.add_column(translate(say(f"column.{name}")), justify="left" if left else "right")
    table.add_column("", style="bold")
    causes: dict[int, Words] = {}
    for one in analysis.stragglers:
        cause = say(f"phase.{one.cause}")
        verdict = say("verdict.stage", cause=cause) if one.kind == "stage" else cause
        causes |= {rank: verdict for rank in one.ranks or (one.rank,) if rank not in causes}
    shown = _chosen(analysis.ranks, causes)
    for rank in shown:
        cells = [str(rank.rank), *([rank.host] if several_hosts else [])]
        cells += [_number(rank.own_work_ms), _number(rank.mean_ratio, 2)]
        if met:
            last = None if rank.arrived_last is None else 100 * rank.arrived_last
            cells += [
                _number(rank.lateness_ms),
                "–" if last is None else f"{last:.0f} %",
                _number(rank.imposed_wait_ms),
                _number(rank.wait_ms),
            ]
        named = causes.get(rank.rank)
        cells.append("" if named is None else f"◀ {translate(named)}")
        table.add_row(*cells)
    hidden = len(analysis.ranks) - len(shown)
    if not hidden:
        return table
    return Group(table, Text("  " + translate(say("report.more_ranks", count=hidden)), style="dim"))


def _chosen(ranks: tuple[RankSummary, ...], causes: Iterable[int]) -> list[RankSummary]:
    """All of a few ranks; of many those that are named or impose most, in their order."""
    if len(ranks) <= _RANKS:
        return list(ranks)
    named = set(causes)
    worst = sorted(
        ranks, key=lambda rank: (rank.rank not in named, -(rank.imposed_wait_ms or 0.0), rank.rank)
    )
    return sorted(worst[: _RANKS // 2], key=lambda rank: rank.rank)


def _collectives(found: tuple[CollectiveSummary, ...], translate: Translate) -> RenderableType:
    table = _table(translate, "report.collectives")
    for name in ("op", "group", "size", "count", "bytes", "wait", "queue", "transfer"):
        left = name in ("op", "group")
        table.add_column(translate(say(f"column.{name}")), justify="left" if left else "right")
    for one in found[:_COLLECTIVES]:
        size = _size(one.bytes / one.count) if one.count else "–"
        cells = [one.op, one.group, str(one.group_size), str(one.count), size]
        cells += [_number(value) for value in (one.wait_ms, one.queue_ms, one.transfer_ms)]
        table.add_row(*cells)
    return table


def _setup(setup: Setup, translate: Translate) -> str:
    """What the ranks really trained with, in one line."""
    said: list[str] = []
    if setup.strategy is not None:
        said.append(translate(say("report.setup.strategy", name=setup.strategy)))
    if setup.replicas and setup.workers:
        values = {"replicas": setup.replicas, "workers": setup.workers}
        key = "report.setup.replicas" if setup.replicas > 1 else "report.setup.alone"
        said.append(translate(say(key, **values)))
    if setup.devices:
        said.append(", ".join(f"{count} {kind}" for kind, count in setup.devices.items()))
    if setup.communication:
        by = translate(say("report.setup.communication", by=", ".join(setup.communication)))
        seen = [translate(say(f"report.setup.{place}")) for place in setup.seen_on]
        said.append(f"{by} ({', '.join(seen)})" if seen else by)
    said += [f"{name} {version}" for name, version in setup.versions.items()]
    return " · ".join(said)


def _overhead(cost: Overhead, translate: Translate) -> str:
    """What recording cost, always by account, and measured where that was asked for."""
    if cost.accounted_us is None or cost.accounted_share is None:
        said = [say("report.overhead.unknown", spans=cost.spans_per_step)]
    else:
        percent, us = 100 * cost.accounted_share, cost.accounted_us
        said = [say("report.overhead.accounted", percent=percent, us=us, spans=cost.spans_per_step)]
    if cost.slowdown is not None and cost.low is not None and cost.high is not None:
        percent, low, high = 100 * cost.slowdown, 100 * cost.low, 100 * cost.high
        key = "report.overhead.measured" if cost.shown else "report.overhead.not_shown"
        said.append(say(key, percent=percent, low=low, high=high))
    return "; ".join(translate(part) for part in said)


def _coverage(analysis: Analysis, translate: Translate) -> str:
    coverage = analysis.coverage
    key = "report.coverage.dropped" if coverage.dropped_spans else "report.coverage.whole"
    line = translate(
        say(key, files=coverage.files, dropped=coverage.dropped_spans, open=coverage.open_spans)
    )
    if coverage.skipped:
        line += ", " + translate(say("report.coverage.skipped", count=len(coverage.skipped)))
    return line


def _export(told: Mapping[str, Any], translate: Translate) -> str:
    """What became of a live export; what did not arrive comes with the command that sends it."""
    said = [say("report.export", **told)]
    if told["rejected"] or told["refused"]:
        said.append(say("report.export.refused", count=told["rejected"] + told["refused"]))
    if told["left_spans"] or not told["finished"]:
        said.append(say("report.export.left", **told))
    if len(said) > 1 and told["message"]:
        said.append(say("report.export.message", message=told["message"]))
    return "; ".join(translate(part) for part in said)


def _table(translate: Translate, title: str) -> Table:
    return Table(
        title=Text(translate(say(title)), style="bold"),
        title_justify="left",
        box=None,
        padding=(0, 1),
        header_style="dim",
        pad_edge=True,
    )


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
