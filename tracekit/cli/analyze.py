"""``tracekit analyze``: who made the others wait, in what, and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._analysis import analyze_and_report
from tracekit.cli._options import EngineName, FailOn, Format, parse_steps, parse_thresholds

__all__ = ["command"]


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Run directories, foreign files, folders of them."),
    ],
    format: Annotated[Format, typer.Option(help="How to print the verdict.")] = Format.text,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a file, not to stdout."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="What runs the SQL.")] = EngineName.duckdb,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only steps A to B, as in 10:50, 10: or :50.")
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Change a threshold of docs/numbers.md."),
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 1 when a finding is at least as severe.")
    ] = None,
) -> int:
    """Say who made the others wait, in what, and what it cost; or why the run stopped."""
    from tracekit.analysis import Options

    first, last = parse_steps(steps)
    chosen = parse_thresholds(threshold or [], Options())
    options = Options(first_step=first, last_step=last, **chosen)
    return analyze_and_report(paths, format, output, fail_on, options)
