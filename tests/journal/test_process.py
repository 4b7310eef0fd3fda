"""Whether the writer of a journal lives is told by pid and start, else by its heartbeat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tracekit.journal.process import (
    boot_id,
    is_alive,
    namespace,
    process_start,
    process_state,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def alive(pid: int, **identity: Any) -> bool:
    """By the kernel alone: the heartbeat is ancient."""
    return is_alive({"boot_id": boot_id(), **identity}, pid, heartbeat_ns=0, offset_ns=0)


def test_a_process_lives_until_it_is_gone(child: subprocess.Popen[bytes]) -> None:
    start = process_start(child.pid)
    assert alive(child.pid, pid_start=start)
    os.kill(child.pid, signal.SIGSTOP)
    assert alive(child.pid, pid_start=start)
    os.kill(child.pid, signal.SIGKILL)
    while process_state(child.pid) not in ("Z", None):
        time.sleep(0.01)
    assert not alive(child.pid, pid_start=start)  # not waited for yet
    child.wait()
    assert not alive(child.pid, pid_start=start)
    assert process_start(child.pid) is None


def test_another_process_with_the_pid_is_not_the_writer() -> None:
    assert alive(os.getpid(), pid_start=process_start(os.getpid()))
    assert not alive(os.getpid(), pid_start=1)


def test_in_another_pid_namespace_the_heartbeat_decides() -> None:
    identity = {"boot_id": boot_id(), "pid_ns": namespace("pid") + "x"}
    now = time.monotonic_ns()
    assert is_alive(identity, os.getpid(), now - 10**9, 0)
    assert not is_alive(identity, os.getpid(), now - 10**11, 0)


def test_on_another_boot_the_heartbeat_decides_by_the_wall_clock() -> None:
    identity = {"boot_id": "another"}
    offset = 10**18
    beat = time.time_ns() - offset
    assert is_alive(identity, os.getpid(), beat - 10**9, offset)
    assert not is_alive(identity, os.getpid(), beat - 10**11, offset)
