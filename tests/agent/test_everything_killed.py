"""Whoever is killed, ranks, agent or both: every span a rank acknowledged is there, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tracekit.dataset import open_run

RANKS = 2
SCRIPT = """
import os, sys, time
import tracekit

tracekit.start(
    run="killed", dir=sys.argv[1], rank=int(sys.argv[2]), world_size=2, segment_bytes=1 << 18
)
number = 0
while True:
    with tracekit.step(number):
        for _ in range(50):
            with tracekit.span("work", number=number):
                pass
            os.write(1, b"%d\\n" % number)
            number += 1
    time.sleep(0.02)
"""


@contextmanager
def job(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that acknowledge each span through a pipe, and their agent."""
    processes = []
    for rank in range(RANKS):
        with (tmp_path / f"acknowledged-{rank}").open("wb") as file:
            command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(rank)]
            processes.append(subprocess.Popen(command, stdout=file))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for pid in agents(tmp_path):
            os.kill(pid, signal.SIGKILL)


def agents(tmp_path: Path) -> list[int]:
    """The agents that serve runs in this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"tracekit.agent" in command and str(tmp_path).encode() in command:
                found.append(int(entry.name))
    return found


def wait_for(what: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def acknowledged(tmp_path: Path, rank: int) -> list[int]:
    text = (tmp_path / f"acknowledged-{rank}").read_bytes()
    return [int(line) for line in text[: text.rfind(b"\n")].split()]


def found(run_dir: Path, rank: int) -> list[int]:
    """The numbers of the closed spans of a rank, as often as they are there."""
    with open_run(run_dir) as run:
        rows = run.table("spans", ["rank", "name", "is_open", "attributes"]).to_pylist()
    return sorted(
        int(dict(row["attributes"])["number"])
        for row in rows
        if row["rank"] == rank and row["name"] == "work" and not row["is_open"]
    )


def check(tmp_path: Path) -> None:
    for rank in range(RANKS):
        numbers = found(tmp_path / "killed", rank)
        assert len(numbers) == len(set(numbers)), "a span is there twice"
        assert set(acknowledged(tmp_path, rank)) <= set(numbers)


def parts(tmp_path: Path) -> bool:
    return len(list(tmp_path.glob("killed/spans/*/*/*.parquet"))) >= RANKS


@pytest.mark.slow
def test_ranks_and_agent_killed_at_once_lose_nothing(tmp_path: Path) -> None:
    with job(tmp_path) as processes:
        wait_for(lambda: parts(tmp_path))
        for pid in [*agents(tmp_path), *(process.pid for process in processes)]:
            os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.wait()
        assert list(tmp_path.glob("killed/attempt-000/journal/*.tkj"))
        check(tmp_path)


@pytest.mark.slow
def test_an_agent_that_outlives_its_killed_ranks_leaves_only_parquet(tmp_path: Path) -> None:
    with job(tmp_path) as processes:
        wait_for(lambda: all(acknowledged(tmp_path, rank) for rank in range(RANKS)))
        wait_for(lambda: agents(tmp_path))
        for process in processes:
            process.kill()
            process.wait()
        wait_for(lambda: not agents(tmp_path))
        assert not list(tmp_path.glob("killed/attempt-000/journal/*.tkj"))
        check(tmp_path)


@pytest.mark.slow
def test_a_run_is_complete_while_it_is_written(tmp_path: Path) -> None:
    with job(tmp_path):
        wait_for(lambda: parts(tmp_path))
        for _ in range(5):
            before = [set(acknowledged(tmp_path, rank)) for rank in range(RANKS)]
            for rank in range(RANKS):
                numbers = found(tmp_path / "killed", rank)
                assert len(numbers) == len(set(numbers))
                assert before[rank] <= set(numbers)
