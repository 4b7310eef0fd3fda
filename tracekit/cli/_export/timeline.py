"""A run as a timeline, Chrome's JSON or Perfetto's own format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tracekit.cli._export.judged import judge
from tracekit.cli._output import destination
from tracekit.cli._terminal import tell
from tracekit.dataset import Run
from tracekit.exporters import chrome_trace
from tracekit.exporters.chrome_trace import Choice

__all__ = ["write_timeline"]


def write_timeline(
    run: Run, output: Path | None, choice: Choice, perfetto: bool, per_rank: bool
) -> None:
    """Write it, and say how much it is."""
    write = chrome_trace.export
    if perfetto:
        from tracekit.exporters import perfetto as own

        write = own.export_per_rank if per_rank else own.export
    if _hosts(run) > 1:
        choice = replace(choice, corrections=judge(run).corrections)
    with destination(output) as file:
        written = write(run, file, choice)
    where = "" if output is None else f" in {output}"
    arrows, waits = len(written.arrows), written.waits
    drawn = (
        f"{arrows:,} arrows" if arrows == waits else f"the {arrows:,} longest of {waits:,} waits"
    )
    if per_rank:
        drawn = "no arrows, as none leads from file to file"
    tell(f"{written.spans:,} spans of {len(written.processes)} ranks and {drawn}{where}")
    if written.clocks > 1:
        tell(f"{written.clocks} clocks, each as its host had it: their offsets are not known")


def _hosts(run: Run) -> int:
    """On how many hosts the ranks were: of one, nobody need compare clocks."""
    return len(set(run.table("facts", ["host"])["host"].to_pylist()) - {None})
