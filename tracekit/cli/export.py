"""``tracekit export``: a run in the format of another tool."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._options import parse_steps
from tracekit.cli._output import destination
from tracekit.cli._terminal import tell
from tracekit.errors import UsageError

__all__ = ["command"]


class Target(str, Enum):
    """What the run is exported to."""

    chrome = "chrome"
    perfetto = "perfetto"


def command(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    to: Annotated[Target, typer.Option(help="Chrome's JSON, or Perfetto's own format.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a file, not to stdout."),
    ] = None,
    per_rank: Annotated[
        bool,
        typer.Option(
            "--per-rank", help="A TAR with a file a rank; so is FILE when it ends in .tar."
        ),
    ] = False,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only steps A to B, as in 10:50, 10: or :50.")
    ] = None,
    max_spans: Annotated[
        int, typer.Option(min=1, help="Refuse more spans and events than that.")
    ] = 1_000_000,
    min_wait: Annotated[
        float, typer.Option(min=0.0, help="Draw no arrow for waits of fewer milliseconds.")
    ] = 0.1,
    max_arrows: Annotated[
        int, typer.Option(min=0, help="Of more waits than that, draw the longest.")
    ] = 20_000,
) -> int:
    """Write a run as a timeline that Perfetto (https://ui.perfetto.dev) opens.

    Every rank is a process, every lane a track; arrows lead from the rank that came last to a
    collective to those that waited for it.
    """
    from tracekit.dataset import open_run
    from tracekit.exporters import chrome_trace

    if output is None and sys.stdout.isatty():
        raise UsageError("say where to write it: -o FILE")
    per_rank = per_rank or (output is not None and output.suffix == ".tar")
    if per_rank and to is not Target.perfetto:
        raise UsageError("only Perfetto reads a TAR of ranks: --to perfetto")
    first, last = parse_steps(steps)
    choice = chrome_trace.Choice(first, last, max_spans, round(min_wait * 1e6), max_arrows)
    write = chrome_trace.export
    if to is Target.perfetto:
        from tracekit.exporters import perfetto

        write = perfetto.export_per_rank if per_rank else perfetto.export
    with open_run(run) as opened:
        for path, reason in opened.coverage.skipped:
            tell(f"{path}: {reason}; left out")
        with destination(output) as file:
            written = write(opened, file, choice)
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
    return 0
