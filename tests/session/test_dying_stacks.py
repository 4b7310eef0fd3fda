"""A rank that dies of a fault leaves the stacks of its threads in the run; others keep theirs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.dataset import DuckDB, open_run

SCRIPT = """
import ctypes, faulthandler, os, signal, sys
import tracekit

def fault():
    ctypes.string_at(0)

def abort():
    os.abort()

def killed_after_a_childs_fault():
    child = os.fork()
    if not child:
        fault()
    os.waitpid(child, 0)
    os.kill(os.getpid(), signal.SIGKILL)

def users_own():
    faulthandler.enable()
    fault()

def users_own_outlives_ours():
    faulthandler.enable()
    tracekit.stop()
    fault()

def ours_ends():
    tracekit.stop()
    print(faulthandler.is_enabled())

tracekit.start(run="dying", dir=sys.argv[1], rank=0, world_size=1, agent=False)
with tracekit.step(0), tracekit.span("work"):
    globals()[sys.argv[2]]()
"""


def run(tmp_path: Path, what: str) -> subprocess.CompletedProcess[str]:
    """A rank that does this in its first step."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), what]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def analyzed(tmp_path: Path) -> Analysis:
    with open_run(tmp_path / "dying") as opened, DuckDB() as engine:
        for name, source in opened.sources.items():
            engine.register(name, source)
        return analyze(engine, opened.coverage)


@pytest.mark.parametrize(("what", "number"), [("fault", signal.SIGSEGV), ("abort", signal.SIGABRT)])
def test_the_verdict_quotes_where_a_rank_died(tmp_path: Path, what: str, number: int) -> None:
    done = run(tmp_path, what)
    assert (done.returncode, done.stderr) == (-number, "")
    (found,) = [one for one in analyzed(tmp_path).findings if one.id.startswith("crash.")]
    assert (found.id, found.ranks, found.certainty.value) == ("crash.killed", (0,), "proven")
    assert found.evidence["signal"] == number
    assert f"train.py:{6 if what == 'fault' else 9} {what}" in found.title


def test_what_a_forked_child_died_of_is_not_said_of_the_rank(tmp_path: Path) -> None:
    assert run(tmp_path, "killed_after_a_childs_fault").returncode == -signal.SIGKILL
    (found,) = [one for one in analyzed(tmp_path).findings if one.id.startswith("crash.")]
    assert found.id == "crash.vanished"


@pytest.mark.parametrize("what", ["users_own", "users_own_outlives_ours"])
def test_who_asks_for_the_stacks_of_a_fault_gets_them_where_he_wants(
    tmp_path: Path, what: str
) -> None:
    assert "Fatal Python error: Segmentation fault" in run(tmp_path, what).stderr


def test_nothing_is_left_when_recording_ends(tmp_path: Path) -> None:
    assert run(tmp_path, "ours_ends").stdout == "False\n"
