"""The whole way: real processes with a real fault, and what ``tracekit demo`` says of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def demo(run_dir: Path, *arguments: str) -> dict[str, Any]:
    """The verdict of a demo; its stdout is one JSON object and nothing else."""
    command = [sys.executable, "-m", "tracekit", "demo", "-o", str(run_dir), "--format", "json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"tracekit: the run is in {run_dir}: tracekit analyze {run_dir}\n"
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def findings(verdict: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    return [finding for finding in verdict["findings"] if finding["id"].startswith(prefix)]


def test_a_slow_forward_is_named(tmp_path: Path) -> None:
    verdict = demo(tmp_path / "run", "--fault", "forward:2")
    assert [(s["rank"], s["cause"]) for s in verdict["stragglers"]] == [(2, "forward")]
    assert verdict["run"]["world_size"] == 4
    assert verdict["run"]["steps"] == 60


def test_who_never_arrives_is_named_with_where_it_is(tmp_path: Path) -> None:
    verdict = demo(tmp_path / "run", "--fault", "hang:3", "--steps", "30")
    assert verdict["symptom"] == "hang"
    (hang,) = findings(verdict, "hang.")
    assert (hang["id"], hang["ranks"]) == ("hang.missing_rank", [3])
    assert "wait_for_nothing" in json.dumps(hang["evidence"])
    assert findings(verdict, "crash.") == []


def test_who_is_killed_is_named_by_the_launchers_word(tmp_path: Path) -> None:
    verdict = demo(tmp_path / "run", "--fault", "kill:1", "--steps", "30")
    assert verdict["symptom"] == "crash"
    (crash,) = findings(verdict, "crash.")
    assert (crash["id"], crash["ranks"]) == ("crash.killed", [1])


def test_without_the_launchers_word_a_killed_rank_vanished(tmp_path: Path) -> None:
    verdict = demo(tmp_path / "run", "--fault", "kill:1", "--steps", "30", "--no-launcher-word")
    (crash,) = findings(verdict, "crash.")
    assert (crash["id"], crash["ranks"]) == ("crash.vanished", [1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_demo_ends_all_its_processes(tmp_path: Path, number: int) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "tracekit", "demo", "-o", str(run_dir), "--steps", "5000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        until(lambda: len(list(run_dir.glob("attempt-000/ranks/rank-*.json"))) == 4)
        assert len(members(run_dir)) >= 5
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"tracekit: interrupted\n")
    until(lambda: members(run_dir) == [])


def members(run_dir: Path) -> list[int]:
    """The processes, torchrun, ranks and agent, that were told to use this run directory."""
    mark = b"TRACEKIT_DIR=" + os.fsencode(run_dir.parent)
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
