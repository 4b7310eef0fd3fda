"""Real trainings of several workers on this machine, and what is said of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).parent / "job.py"
LONGEST_S = 150
CRASHES = {-signal.SIGABRT, -signal.SIGSEGV}
"""How TensorFlow 2.21's profiler now and then ends a process that stops it."""


class Training:
    """Workers that run, or ran, and the run directory that they record into."""

    def __init__(self, folder: Path, mode: str, workers: int, options: dict[str, Any]) -> None:
        self.folder, self.run = folder, folder / "run"
        folder.mkdir(parents=True)
        environment = {**os.environ, "TRACEKIT_DIR": str(folder), "TRACEKIT_RUN": "run"}
        environment.pop("TF_CONFIG", None)
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
        ports = ",".join(str(one.getsockname()[1]) for one in sockets)
        for one in sockets:
            one.close()
        self.processes = []
        for rank in range(workers):
            arguments = [str(rank), ports, str(folder), mode, json.dumps(options)]
            with open(folder / f"said-{rank}.txt", "wb") as said:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(JOB), *arguments],
                        env=environment,
                        stdout=said,
                        stderr=said,
                        start_new_session=True,
                    )
                )

    def wait(self) -> list[int]:
        """How each worker ended."""
        return [process.wait(LONGEST_S) for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def said(self) -> str:
        """The last words of each worker."""
        return "\n".join(p.read_text()[-1500:] for p in sorted(self.folder.glob("said-*.txt")))

    def told(self) -> list[dict[str, Any]]:
        """What each worker found out about itself."""
        return [json.loads(p.read_bytes()) for p in sorted(self.folder.glob("told-*.json"))]

    def verdict(self, *arguments: str) -> dict[str, Any]:
        """The report; nothing while the run has not begun."""
        if not (self.run / "run.json").exists():
            return {"findings": []}
        command = [sys.executable, "-m", "tracekit", "analyze", str(self.run), "--format", "json"]
        done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = orjson.loads(done.stdout)
        return found

    def until(self, *ids: str) -> dict[str, Any]:
        """The first finding of these, as soon as the report of the running job has one."""
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            for finding in self.verdict()["findings"]:
                if finding["id"] in ids:
                    return dict(finding)
            time.sleep(2)
        raise AssertionError(self.said())


@contextmanager
def training(folder: Path, mode: str, workers: int, **options: Any) -> Iterator[Training]:
    """Workers while they run; whoever is left ends with the block."""
    made = Training(folder, mode, workers, options)
    try:
        yield made
    finally:
        made.end()


def trained(folder: Path, mode: str, workers: int, **options: Any) -> Training:
    """A training that ran to its end; once more where TensorFlow's profiler broke it."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        with training(folder, mode, workers, **options) as made:
            codes = made.wait()
        profiles = "profile" in options or "windows" in options
        if not (profiles and CRASHES & set(codes)):
            break
    assert codes == [0] * workers, made.said()
    return made
