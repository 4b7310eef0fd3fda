"""``tracekit agent``: convert and watch a run by hand, where no agent does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._run_dir import latest_attempt, rank_files

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Which attempt of the run; else the last.")
    ] = None,
    stall: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds after which a step counts as stuck.")
    ] = None,
) -> int:
    """Serve the ranks on this host until they are gone and everything is in the run directory.

    The first rank of a host starts an agent by itself; this is for runs without one, or whose
    agent was killed. Where another agent works for the same ranks this one ends at once.
    """
    from tracekit.agent import main

    number = latest_attempt(run) if attempt is None else attempt
    mine = [file for file in rank_files(run, number) if file.here]
    arguments = [str(run.absolute()), "--attempt", str(number), "--ranks", str(len(mine) or 1)]
    for folder in sorted({file.journal for file in mine}):
        arguments += ["--journal", str(folder)]
    if stall is not None:
        arguments += ["--stall", str(stall)]
    return main(arguments)
