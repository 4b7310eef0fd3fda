"""Real jobs that fail under ``tracekit run``: the run, what its launcher and its ranks wrote, and a
kernel's line are one verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.accuracy.scenes import alerts
from tracekit.cli import main

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

JOB = Path(__file__).parents[1] / "adapters" / "text_logs" / "failing_job.py"


def failed(folder: Path, fault: str) -> tuple[Path, list[Path]]:
    """The run of a job that failed, and the logs beside it."""
    logs, launcher = folder / "ranks", folder / "launcher.log"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
        "--log-dir", str(logs), "--redirects", "3", "--tee", "3",
        "-m", "tracekit", "run", "--dir", str(folder / "runs"), str(JOB), fault,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
    with launcher.open("wb") as log:
        done = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, timeout=200, check=False
        )
    assert done.returncode != 0, launcher.read_text()
    (run,) = (path for path in (folder / "runs").iterdir() if path.is_dir())
    return run, [launcher, logs]


def told(folder: Path, *paths: Path) -> Any:
    output = folder / "told.json"
    given = [str(path) for path in paths]
    assert main(["analyze", *given, "--format", "json", "-o", str(output)]) == 0
    return json.loads(output.read_text())


def pid_of(run: Path, rank: int) -> int:
    files = sorted(run.glob(f"attempt-000/ranks/rank-{rank:05d}.*.json"))
    return int(files[0].name.split(".")[1].rpartition("-")[2])


def test_a_killed_rank_is_found_by_the_pid_in_the_kernels_line(tmp_path: Path) -> None:
    run, logs = failed(tmp_path, "kill")
    assert [one[1:] for one in alerts(told(tmp_path, run, *logs))] == [([1], "proven")]
    kernel = tmp_path / "dmesg.txt"
    kernel.write_text(
        f"[ 9123.4] Out of memory: Killed process {pid_of(run, 1)} (python) total-vm:90000000kB\n"
    )
    found = told(tmp_path, *logs, kernel, run)
    assert found["symptom"] == "oom"
    assert alerts(found) == [("killed_oom", [1], "proven")]
    other = told(tmp_path, run, *logs[:1])
    assert alerts(other) == [("killed_signal", [1], "proven")]


def test_an_error_is_told_once_by_run_and_logs(tmp_path: Path) -> None:
    run, logs = failed(tmp_path, "raise")
    found = told(tmp_path, run, *logs)
    assert alerts(found) == [("error", [2], "proven")]
    assert "bad sample 17" in found["findings"][0]["title"]
    assert any("launcher.log:" in line for line in found["findings"][0]["lines"])


def test_a_rank_that_sleeps_is_the_one_cause_of_all_timeouts(tmp_path: Path) -> None:
    run, logs = failed(tmp_path, "sleep")
    found = told(tmp_path, run, *logs)
    assert [one[1] for one in alerts(found)] == [[2]], found["findings"]
    assert found["symptom"] == "hang"
