"""Servers from the packages index: installed once, each by itself, and gone after the tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

VERSIONS = {"arize-phoenix": "20.26.1", "rotel": "0.0.1a15"}
"""The packages that tests may install, and which version of each."""

FOLDER = Path(__file__).parents[3] / ".venv-servers"
INSTALL_S = 900.0
START_S = 120.0

# The kernel kills the server when the thread that started it is gone, whatever ended the tests.
# Asked for in the new process and kept by exec, so that nothing runs between fork and exec here.
DIES_WITH_US = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("whoever started this is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def environment(package: str) -> Path:
    """The virtual environment that holds a package of ``VERSIONS``, made by the first who asks.

    Skips the test, with what pip said, where it cannot be installed.
    """
    name = f"{package}-{VERSIONS[package]}-python{sys.version_info.major}.{sys.version_info.minor}"
    venv = FOLDER / name
    FOLDER.mkdir(exist_ok=True)
    with locked(FOLDER / ".lock"):
        if not (venv / ".ready").exists():
            shutil.rmtree(venv, ignore_errors=True)
            run(package, sys.executable, "-m", "venv", str(venv))
            pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
            few = ["--quiet", "--retries", "1", "--timeout", "15"]
            run(package, *pip, "install", *few, f"{package}=={VERSIONS[package]}")
            (venv / ".ready").touch()
    return venv


def run(package: str, *command: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{package} was not installed within {INSTALL_S:.0f} s")
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")]
        pytest.skip(f"{package} cannot be installed: {(errors or said or ['no reason given'])[-1]}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one test run at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Server:
    """A process that is killed with all its children by ``stop``, or when its starter dies.

    To be started by a thread that lives as long as the server is needed. Of our environment it
    sees only ``PATH`` and ``TMPDIR``: no proxy, no setting of OpenTelemetry, no home.
    """

    def __init__(self, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.log = folder / "log"
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DIES_WITH_US, str(os.getpid()), *command],
                cwd=folder,
                env={**kept, "HOME": str(folder), "LANG": "C.UTF-8", **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool]) -> bool:
        """Whether the server got ready; False if it ended instead. Too late is a failure."""
        give_up = time.monotonic() + START_S
        while self._process.poll() is None:
            if ready():
                return True
            if time.monotonic() > give_up:
                pytest.fail(f"no server within {START_S:.0f} s: {self.last_words()}")
            time.sleep(0.1)
        return False

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Running(Protocol):
    """Whatever is in front of a server."""

    @property
    def server(self) -> Server: ...


R = TypeVar("R", bound=Running)


def started(make: Callable[[], R], is_ready: Callable[[R], bool]) -> R:
    """A server that is ready; made anew, on other ports, if somebody took its ports before it."""
    for _ in range(3):
        running = make()
        try:
            if running.server.wait_until(partial(is_ready, running)):
                return running
        except BaseException:
            running.server.stop()
            raise
        running.server.stop()
    pytest.fail(f"the server ended at once, three times: {running.server.last_words()}")


def answers(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
