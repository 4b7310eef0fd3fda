"""A rank that is stopped, one that holds the interpreter's lock and one in a slow read differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tracekit.dataset.stacks import parse_stacks

SCRIPT = """
import ctypes, os, sys, time
import tracekit

tracekit.start(run="stuck", dir=sys.argv[1], rank=0, world_size=1, stall_s=0.5)

def hold_the_lock():
    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)

def read_slowly():
    os.read(os.pipe()[0], 1)

def sleep_on():
    time.sleep(60)

for i in range(3):
    with tracekit.step(i):
        time.sleep(0.02)
with tracekit.step(3):
    print("ready", flush=True)
    globals()[sys.argv[2]]()
"""


@contextmanager
def rank(tmp_path: Path, what: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A real rank in its fourth step, in the middle of something."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), what], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process, tmp_path / "stuck" / "attempt-000"
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def looks(attempt: Path, count: int, within_s: float = 90.0) -> list[dict[str, Any]]:
    """What the agent found, once it has looked so often."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for path in attempt.glob("ranks/*.stacks.json"):
            found: list[dict[str, Any]] = json.loads(path.read_text())
            if len(found) >= count:
                return found
        time.sleep(0.1)
    raise AssertionError(f"the agent did not look {count} times in {within_s} s")


def innermost(look: dict[str, Any]) -> list[str]:
    """The functions of the one thread of the job, the innermost first."""
    (thread,) = look["threads"]
    return [frame.rpartition(" ")[2] for frame in thread["frames"]]


@pytest.mark.slow
def test_a_rank_that_holds_the_interpreters_lock_has_stacks_and_a_stale_heartbeat(
    tmp_path: Path,
) -> None:
    with rank(tmp_path, "hold_the_lock") as (_, attempt):
        found = looks(attempt, 2)
    assert innermost(found[0])[0] == innermost(found[1])[0] == "hold_the_lock"
    assert found[1]["heartbeat_age_ns"] > 4_000_000_000
    assert found[1]["state"] == "S"


@pytest.mark.slow
def test_a_rank_in_a_slow_read_has_a_fresh_heartbeat(tmp_path: Path) -> None:
    with rank(tmp_path, "read_slowly") as (_, attempt):
        found = looks(attempt, 2)
    assert innermost(found[1])[0] == "read_slowly"
    # Where the machine is busy the agent itself may be late once.
    assert min(look["heartbeat_age_ns"] for look in found) < 3_000_000_000


@pytest.mark.slow
def test_a_stopped_rank_is_seen_as_stopped_and_lives_on_when_it_is_continued(
    tmp_path: Path,
) -> None:
    with rank(tmp_path, "sleep_on") as (process, attempt):
        os.kill(process.pid, signal.SIGSTOP)
        found = looks(attempt, 1)
        assert found[0]["state"] == "T"
        assert found[0]["threads"] == []
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.2)
        assert process.poll() is None


def test_stacks_of_every_python_are_read() -> None:
    text = """Current thread 0x00007f1c (most recent call first):
  File "/job/train.py", line 12 in wait
  File "/job/train.py", line 20 in <module>

Thread 0x00007f1d [tracekit-journal] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line ??? in wait
"""
    threads = parse_stacks(text)
    assert [thread["current"] for thread in threads] == [True, False]
    assert threads[0]["frames"][0] == "/job/train.py:12 wait"
    assert threads[1]["name"] == "tracekit-journal"
