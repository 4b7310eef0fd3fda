"""Logs of NCCL that a run's own ranks wrote into it: read whenever the run is looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.dataset import Run

__all__ = ["add_nccl_logs"]


def add_nccl_logs(run: Run) -> list[tuple[Path, str]]:
    """Add what the logs tell to the tables of a run; those that are not used, and why."""
    if not any(run.path.glob("attempt-*/nccl/*")):
        return []
    from tracekit.adapters.nccl_log import tables_of_run

    processes: dict[int, dict[tuple[str, int], int]] = {}
    for row in run.table("facts", ("attempt", "rank", "name", "value")).to_pylist():
        if row["name"] == "rank" and row["rank"] is not None:
            _add(processes.setdefault(row["attempt"], {}), row["rank"], row["value"])
    found, _, skipped = tables_of_run(run.path, run.run_id, processes)
    for name, tables in found.items():
        run.sources[name] += tables
    return skipped


def _add(processes: dict[tuple[str, int], int], rank: int, text: str) -> None:
    value = json.loads(text)
    host, pid = value.get("host"), value.get("pid")
    if isinstance(host, str) and isinstance(pid, int):
        processes[host.partition(".")[0], pid] = rank
