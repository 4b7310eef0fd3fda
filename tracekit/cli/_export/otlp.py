"""A run by OTLP: to a server, or into a file of JSON lines."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc

from tracekit.cli._export.judged import judge
from tracekit.cli._output import destination
from tracekit.cli._terminal import progress, tell
from tracekit.dataset import Run
from tracekit.exporters import otlp

__all__ = ["send", "write_json"]


def send(run: Run, choice: otlp.Choice, settings: otlp.Settings, now: bool) -> None:
    """Send it, and say how much was taken.

    Raises ``NotDelivered`` where the server refuses or stays away.
    """
    traces = _traces(run, choice, now)
    with progress() as say:
        sent = otlp.export(
            traces,
            settings,
            progress=lambda sent: say(f"{sent.spans:,} spans sent to {settings.target}"),
        )
    tell(f"{_amount(traces, sent.spans)} sent to {settings.target}")
    if sent.rejected:
        tell(
            f"{sent.rejected:,} of them were rejected: {sent.message or 'the server says no more'}"
        )
    elif sent.message:
        tell(f"{settings.target} says: {sent.message}")


def write_json(run: Run, choice: otlp.Choice, output: Path | None, now: bool) -> None:
    """Write it, and say how much it is."""
    traces = _traces(run, choice, now)
    with destination(output) as file:
        spans = otlp.export_json(traces, file)
    tell(_amount(traces, spans) + ("" if output is None else f" in {output}"))


def _amount(traces: otlp.Traces, spans: int) -> str:
    folded = f" ({traces.folded:,} more stand in aggregates)" if traces.folded else ""
    steps = "1 step" if traces.steps == 1 else f"{traces.steps:,} steps"
    return f"{spans:,} spans of {steps}{folded}"


def _traces(run: Run, choice: otlp.Choice, now: bool) -> otlp.Traces:
    shift = time.time_ns() - _end(run) if now else 0
    judged = judge(run)
    choice = replace(choice, corrections=judged.corrections)
    return otlp.Traces(run, choice, judged.stragglers, shift, given=otlp.given_resource())


def _end(run: Run) -> int:
    """When the run ended, as far as its spans know."""
    spans = run.table("spans", ["start_ns", "duration_ns"])
    ends = pc.max(pc.add(spans["start_ns"], spans["duration_ns"])).as_py()
    return time.time_ns() if ends is None else int(ends)
