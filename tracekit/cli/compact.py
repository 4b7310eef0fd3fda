"""``tracekit compact``: few sorted files instead of many small ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._run_dir import attempts
from tracekit.cli._terminal import tell
from tracekit.cli._windows import adopt_windows

__all__ = ["command"]


def command(run: Annotated[Path, typer.Argument(help="The run directory.")]) -> int:
    """Rewrite the Parquet files of a run as few ones, sorted by step, rank and time."""
    from tracekit.dataset import compact

    attempts(run)
    left = adopt_windows(run)
    done = compact(run)
    for path, reason in [*left, *done.skipped]:
        tell(f"{path}: {reason}; left as it is")
    typer.echo(f"{done.rows} rows in {len(done.files)} files, which replace {done.replaced}")
    return 0
