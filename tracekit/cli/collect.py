"""``tracekit collect``: bring what still lies in this host's local scratch into the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._run_dir import RankFile, attempts, rank_files
from tracekit.cli._terminal import tell
from tracekit.errors import TracekitError

__all__ = ["command"]


def command(run: Annotated[Path, typer.Argument(help="The run directory.")]) -> int:
    """Convert journals that lie outside the run directory, on this host, into it.

    Journals are kept in local scratch where the run directory is on a network file system. The
    agent ships them; run this on each host where it could not.
    """
    from tracekit.dataset import convert, finalize
    from tracekit.journal.reader import open_journal

    elsewhere: list[RankFile] = []
    found = 0
    for file in (file for attempt in attempts(run) for file in rank_files(run, attempt)):
        head = file.journal / f"{file.stem}.head.tkj"
        if _inside(head, run) or _ended(run, file):
            continue
        if not head.exists():
            elsewhere.append(file)
            continue
        found += 1
        try:
            journal = open_journal(head)
            live = journal.writing()
            done = convert(journal, run) if live else finalize(journal, run)
        except TracekitError as error:
            tell(f"rank {file.rank}: {error}")
            continue
        state = "is converted by another process" if done.busy else f"{done.spans} spans"
        typer.echo(f"rank {file.rank}: {state}{' so far, it still runs' if live else ''}")
    if not found and not elsewhere:
        typer.echo("nothing to collect on this host")
    for file in elsewhere:
        where = "gone from this host" if file.here else f"on host {file.host}"
        hint = "" if file.here else f", run tracekit collect {run} there"
        typer.echo(f"rank {file.rank}: its journal is {where}: {file.journal}{hint}")
    return 0


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _ended(run: Path, file: RankFile) -> bool:
    """Whether the journal was converted to its end already."""
    return (run / f"attempt-{file.attempt:03d}" / "ranks" / f"{file.stem}.end.json").exists()
