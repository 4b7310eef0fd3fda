"""Profiles imported into a run, and what the analysis says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tracekit.adapters._reading import Intake, find_files, importers, read_files
from tracekit.analysis import Options, analyze
from tracekit.dataset import DuckDB, open_run
from tracekit.findings.result import Analysis


def imported(paths: Sequence[Path], run_dir: Path) -> Intake:
    """Import what is in the paths."""
    run_dir.mkdir(parents=True, exist_ok=True)
    known = importers()
    intake = Intake(run_dir)
    read_files(find_files(paths, known), known, intake, lambda message: None)
    (run_dir / "run.json").write_text(json.dumps({"uid": intake.run_id, "label": "foreign"}))
    return intake


def spans(run_dir: Path) -> pa.Table:
    with open_run(run_dir) as run:
        return run.table("spans")


def verdict(run_dir: Path, options: Options | None = None) -> Analysis:
    with open_run(run_dir) as run, DuckDB() as engine:
        for name, source in run.sources.items():
            engine.register(name, source)
        return analyze(engine, run.coverage, options)
