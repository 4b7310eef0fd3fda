"""Dumps of Flight Recorder that lie in a run: read whenever the run is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.dataset import Run

__all__ = ["add_dumps"]


def add_dumps(run: Run) -> list[tuple[Path, str]]:
    """Add what the dumps of each attempt tell to the tables of a run; those not used, and why."""
    skipped: list[tuple[Path, str]] = []
    for attempt in run.attempts:
        folder = run.path / f"attempt-{attempt.number:03d}"
        # What its ranks left beside their journals no agent lived to take.
        paths = sorted({*folder.glob("flight_recorder/*"), *folder.glob("journal/*.ring")})
        paths = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        if not paths:
            continue
        from tracekit.adapters.flight_recorder import tables_of_run

        found, unused = tables_of_run(paths, run.run_id, attempt.number, attempt.world_size)
        skipped += unused
        for name, table in found.items():
            run.sources[name].append(table)
    return skipped
