"""Logs of NCCL that a run's own ranks wrote into it: read whenever the run is looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.dataset import Run

__all__ = ["add_nccl_logs"]


def add_nccl_logs(run: Run) -> list[tuple[Path, str]]:
    """Add what the logs tell to the tables of a run; those that are not used, and why."""
    if not any(run.path.glob("attempt-*/nccl/*")):
        return []
    from tracekit.adapters.nccl_log import tables_of_run

    processes: dict[int, dict[tuple[str, int], int]] = {}
    began: dict[int, int] = {}
    for row in run.table("facts", ("attempt", "rank", "name", "value")).to_pylist():
        if row["name"] == "rank" and row["rank"] is not None:
            value = json.loads(row["value"])
            _add(processes.setdefault(row["attempt"], {}), row["rank"], value)
            if isinstance(value.get("started_ns"), int):
                known = began.get(row["attempt"], value["started_ns"])
                began[row["attempt"]] = min(known, value["started_ns"])
    found, _, skipped = tables_of_run(run.path, run.run_id, processes, began)
    for name, tables in found.items():
        run.sources[name] += tables
    return skipped


def _add(processes: dict[tuple[str, int], int], rank: int, value: dict[str, Any]) -> None:
    host, pid = value.get("host"), value.get("pid")
    if isinstance(host, str) and isinstance(pid, int):
        processes[host.partition(".")[0], pid] = rank
