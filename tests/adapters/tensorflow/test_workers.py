"""Real trainings of several workers: who is slow, who is gone, and that nothing changes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LONGEST_S = 240


def begin(example: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TRACEKIT_DIR": str(folder), "TRACEKIT_RUN": "run"}
    environment.pop("TF_CONFIG", None)
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / f"tensorflow_{example}.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def train(example: str, *arguments: str, folder: Path) -> str:
    job = begin(example, *arguments, folder=folder)
    try:
        return job.communicate(timeout=LONGEST_S)[0]
    finally:
        end(job)


def end(job: subprocess.Popen[str]) -> None:
    """End a job with all of its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


def verdict(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tracekit", "analyze", str(folder / "run")]
    done = subprocess.run([*command, "--format", "json"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def findings(found: dict[str, Any], id_: str) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["id"] == id_]


def weights(output: str) -> set[str]:
    return set(re.findall(r"weights sum to (\S+)", output))


def test_healthy_workers_are_one_run_and_end_with_the_same_bits(tmp_path: Path) -> None:
    traced = train("fit", "--workers", "2", folder=tmp_path)
    plain = train("fit", "--workers", "2", "--untraced", folder=tmp_path / "untraced")
    assert len(weights(traced)) == 1
    assert weights(traced) == weights(plain)
    found = verdict(tmp_path)
    assert found["run"]["ranks"] == [0, 1]
    assert found["run"]["missing_ranks"] == []
    assert found["run"]["steps"] == 120
    assert findings(found, "straggler.rank") == findings(found, "coverage.step_shift") == []
    counts = {one["group"]: one["count"] for one in found["collectives"]}
    assert max(counts.values()) >= 100  # the all-reduce of each step, seen on both


def test_slow_input_is_named_on_its_worker(tmp_path: Path) -> None:
    train("fit", "--workers", "2", "--slow", "input:1", folder=tmp_path)
    stragglers = verdict(tmp_path)["stragglers"]
    assert [(one["rank"], one["cause"]) for one in stragglers] == [(1, "data")]


def test_slow_computation_is_named_in_a_loop_of_three_workers(tmp_path: Path) -> None:
    train("loop", "--workers", "3", "--slow", "compute:2", folder=tmp_path)
    stragglers = verdict(tmp_path)["stragglers"]
    assert [(one["rank"], one["cause"]) for one in stragglers] == [(2, "forward")]


def test_a_worker_that_was_killed_is_named_and_the_others_are_not(tmp_path: Path) -> None:
    train("fit", "--workers", "3", "--kill", "1", folder=tmp_path)
    (crash,) = [one for one in verdict(tmp_path)["findings"] if one["id"].startswith("crash.")]
    assert crash["ranks"] == [1]


def test_a_worker_that_never_joins_is_named_with_what_the_others_wait_in(tmp_path: Path) -> None:
    job = begin("loop", "--workers", "2", "--missing", "1", folder=tmp_path)
    try:
        deadline = time.monotonic() + LONGEST_S
        while not (missing := _missing(tmp_path)) and time.monotonic() < deadline:
            time.sleep(2)
    finally:
        end(job)
    assert missing["ranks"] == [1]
    assert missing["evidence"]["waiting_ranks"] == [0]


def _missing(folder: Path) -> dict[str, Any]:
    if not (folder / "run" / "run.json").exists():
        return {}
    return next(iter(findings(verdict(folder), "hang.missing_rank")), {})
