"""A command line in this process and in one of its own, and small runs to try it on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tracekit
from tracekit.cli import main


@dataclass(frozen=True)
class Result:
    """What a call of ``tracekit`` came to."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on stderr."""
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Call = Callable[..., Result]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Run ``tracekit`` with these arguments in this process."""

    def run(*arguments: str | Path) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def python() -> Call:
    """Run Python code in a process of its own."""

    def run(code: str, *arguments: str | Path) -> Result:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def make_run(base: Path, label: str = "run", ranks: int = 2, steps: int = 3) -> Path:
    """The directory of a run whose ranks did a little; its records are in journals."""
    session = tracekit.start(run=label, dir=str(base), rank=0, world_size=ranks, agent=False)
    assert session is not None
    for rank in range(ranks):
        with tracekit.as_rank(rank):
            for step in range(steps):
                with tracekit.step(step), tracekit.span("forward", kind="forward"):
                    time.sleep(0.001)
    tracekit.stop()
    return session.run_dir
