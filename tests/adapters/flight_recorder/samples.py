"""Dumps made to order: a few lines become what each rank's recorder would hold."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tracekit.adapters._reading import Intake, find_files, importers, read_files
from tracekit.analysis import Analysis, analyze
from tracekit.dataset import DuckDB, open_run

__all__ = ["NOW", "Job", "entry", "hangs", "read", "verdict"]

NOW = 1_790_000_000_000_000_000
"""When the jobs of the samples hang; files are written ten seconds later."""
_PAUSE = 10


def entry(
    seq: int,
    op: str = "all_reduce",
    *,
    state: str = "completed",
    group: tuple[str, str] = ("0", "default_pg"),
    sizes: Sequence[Sequence[int]] = ((8,),),
    dtype: str = "Float",
    at: int = NOW,
    backend: str = "nccl",
    message: bool = False,
    retired: bool | None = None,
    frames: Iterable[tuple[str, int, str]] = (),
    **more: Any,
) -> dict[str, Any]:
    """One entry as version 2.10 has it."""
    done = state == "completed"
    return {
        "record_id": 1000 + seq,
        "pg_id": int(group[0]) if group[0].isdigit() else 0,
        "process_group": group,
        "collective_seq_id": 0 if message else seq,
        "p2p_seq_id": seq if message else 0,
        "op_id": seq,
        "profiling_name": f"{backend}:{op}",
        "time_created_ns": at + seq * 1000,
        "input_sizes": [list(shape) for shape in sizes],
        "input_dtypes": [dtype],
        "output_sizes": [list(shape) for shape in sizes],
        "output_dtypes": [dtype],
        "state": "scheduled" if backend == "gloo" else state,
        "time_discovered_started_ns": None if state == "scheduled" else at,
        "time_discovered_completed_ns": at if done and backend != "gloo" else None,
        "retired": done if retired is None else retired,
        "timeout_ms": 600_000,
        "is_p2p": message,
        "thread_id": "140624263613312",
        "thread_name": "python",
        "frames": [{"filename": f, "line": line, "name": name} for f, line, name in frames],
        **more,
    }


class Job:
    """The dumps of one job in a folder."""

    def __init__(self, folder: Path, groups: Mapping[str, Sequence[int]] | None = None) -> None:
        self.folder = folder
        self.groups = groups or {}
        folder.mkdir(parents=True, exist_ok=True)

    def dump(
        self,
        rank: int,
        entries: Sequence[Mapping[str, Any]] = (),
        *,
        status: Mapping[str, tuple[int, int]] | None = None,
        name: str = "nccl_trace_rank_{rank}",
        as_json: bool = False,
        version: str = "2.10",
        after_s: float = _PAUSE,
        **more: Any,
    ) -> Path:
        """Write one dump."""
        config = {
            group: {
                "name": group,
                "desc": "default_pg" if group == "0" else f"GROUP_{group}",
                "ranks": str(list(members)),
            }
            for group, members in self.groups.items()
            if rank in members
        }
        value: dict[str, Any] = {"version": version, "pg_config": config, **more}
        value["pg_status"] = {
            local: {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for local, (enqueued, completed) in (status or {}).items()
        }
        value["entries"] = list(entries)
        path = self.folder / name.format(rank=rank)
        data = json.dumps(value).encode() if as_json else pickle.dumps(value, protocol=2)
        path.write_bytes(data)
        os.utime(path, ns=(0, NOW + int(after_s * 1e9)))
        return path


def read(*paths: Path) -> tuple[Analysis | None, Intake]:
    """The verdict over files and folders, as the command gives it, and what was read of them."""
    known = importers()
    found = find_files(paths, known)
    with TemporaryDirectory() as folder:
        intake = Intake(Path(folder))
        read_files(found, known, intake, lambda _: None)
        if not intake.read:
            return None, intake
        with open_run(Path(folder)) as run, DuckDB() as engine:
            for name, source in run.sources.items():
                engine.register(name, source)
            return analyze(engine, run.coverage), intake


def verdict(*paths: Path) -> Analysis:
    """The verdict alone."""
    analysis, intake = read(*paths)
    assert analysis is not None, intake.skipped
    return analysis


def hangs(analysis: Analysis) -> list[tuple[str, tuple[int, ...], str]]:
    """Id, ranks and certainty of what is found about hangs."""
    return [
        (one.id, one.ranks, one.certainty.value)
        for one in analysis.findings
        if one.id.startswith("hang.")
    ]
