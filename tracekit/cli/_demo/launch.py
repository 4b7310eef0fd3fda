"""Running the demo's processes under torchrun, and ending them whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tracekit.cli._demo.options import Training
from tracekit.cli._demo.summary import failures

__all__ = ["Outcome", "run_training"]

_WORKER = Path(__file__).with_name("worker.py")
_PACKAGE = _WORKER.parents[3]
_HANG_S = 20.0
"""How long a hang is watched at most; it ends when the agent took two stacks of each rank."""
_LOOKS = 2
_LIMIT_S = 900.0
_AGENT_S = 10.0
_KEPT = "TRACEKIT_OTLP"
"""The one variable of ours that a demo takes from the user."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the training ended; ``returncode`` is None where the demo ended it."""

    returncode: int | None
    output: str


def run_training(
    training: Training, run_dir: Path, say: Callable[[str], None], launcher_word: bool = True
) -> Outcome:
    """Train with ``run_dir`` as run directory; returns when all is over, the agent's work too."""
    job = _Job(training, run_dir)
    try:
        with _terminated_like_interrupted():
            outcome = job.watch(training, run_dir, say)
    finally:
        job.end()
    say("writing down the rest")
    attempt = run_dir / "attempt-000"
    if attempt.is_dir():
        _keep(attempt / "launcher.log", outcome.output)
        failed = failures(outcome.output)
        if failed and launcher_word:
            _keep(attempt / "launcher.json", json.dumps(failed))
    deadline = time.monotonic() + _AGENT_S
    while (
        _processes("cmdline", b"tracekit.agent", os.fsencode(run_dir))
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    return outcome


class _Job:
    """torchrun and its children."""

    def __init__(self, training: Training, run_dir: Path) -> None:
        self.id = secrets.token_hex(8)
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--nproc-per-node", str(training.ranks), "--local-addr", "127.0.0.1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        command += ["--rdzv-id", self.id, str(_WORKER), *training.arguments()]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(run_dir),
            start_new_session=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def watch(self, training: Training, run_dir: Path, say: Callable[[str], None]) -> Outcome:
        """Follow the job to its end, which in a hang is ours to make."""
        output = []
        hangs = False
        say("starting")
        end = time.monotonic() + _LIMIT_S
        while self.process.poll() is None and time.monotonic() < end:
            if hangs and _looked_at(run_dir) >= training.ranks:
                break
            with contextlib.suppress(queue.Empty):
                line = self.lines.get(timeout=0.1)
                output.append(line)
                if re.match(r"step \d+ of", line):
                    say(line.strip())
                elif training.hangs and re.match(r"rank \d+ stops in step", line):
                    say(f"{line.strip()}; waiting for the agent to look at it")
                    hangs = True
                    end = time.monotonic() + _HANG_S
        returncode = self.process.poll()
        self.end()
        while not self.lines.empty():
            output.append(self.lines.get())
        return Outcome(returncode, "".join(output))

    def end(self) -> None:
        """End torchrun and the ranks: asked first, then killed. The agent ends by itself."""
        if self.process.poll() is None:
            self.process.terminate()  # torchrun passes it on to the ranks
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        mark = f"TORCHELASTIC_RUN_ID={self.id}".encode()
        for pid in _processes("environ", mark):
            if pid not in _processes("cmdline", b"tracekit.agent"):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self.reader.join(2)


def _environment(run_dir: Path) -> dict[str, str]:
    """The user's environment, with our run directory, one thread a rank, and the loopback."""
    environment = {
        k: v for k, v in os.environ.items() if k == _KEPT or not k.startswith("TRACEKIT_")
    }
    path = [str(_PACKAGE), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(path),
        "TRACEKIT_DIR": str(run_dir.parent),
        "TRACEKIT_RUN": run_dir.name,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _looked_at(run_dir: Path) -> int:
    """How many ranks the agent took all the stacks of that it takes of a stall."""
    ranks = 0
    for path in (run_dir / "attempt-000" / "ranks").glob("rank-*.stacks.json"):
        with contextlib.suppress(OSError, ValueError):
            ranks += len(json.loads(path.read_bytes())) >= _LOOKS
    return ranks


def _keep(path: Path, text: str) -> None:
    """Write a new file beside the run's; a run without it is still a run."""
    with contextlib.suppress(OSError), open(path, "x") as file:
        file.write(text)


def _processes(file: str, *words: bytes) -> list[int]:
    """The processes whose ``environ`` or ``cmdline`` has all these words."""
    found = []
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with contextlib.suppress(OSError):
            if set(words) <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end the children as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
