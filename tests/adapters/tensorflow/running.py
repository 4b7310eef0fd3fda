"""Real jobs of TensorFlow on this machine, and the verdicts on the runs that they leave."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.cli import main
from tracekit.dataset import open_run

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Verdict:
    """What ``tracekit analyze`` says of a run."""

    path: Path
    text: dict[str, Any]

    @property
    def ids(self) -> set[str]:
        """The findings."""
        return {one["id"] for one in self.text["findings"]}

    def found(self, id_: str) -> list[dict[str, Any]]:
        """The findings with this id."""
        return [one for one in self.text["findings"] if one["id"] == id_]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """An event each time, in their order."""
        with open_run(self.path) as run:
            rows: list[dict[str, Any]] = run.table("events").to_pylist()
        named = [row for row in rows if row["name"] == name]
        return sorted(named, key=lambda row: row["time_ns"])

    def events(self, name: str) -> list[float]:
        """The values of an event in their order."""
        return [row["value"] for row in self.rows(name)]


def verdict_of(*paths: Path) -> Verdict:
    """Analyze runs in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["analyze", *map(str, paths), "--format", "json"]) == 0
    return Verdict(paths[0], json.loads(out.getvalue()))


def addresses(count: int) -> list[str]:
    """Free addresses of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def told(cluster: Sequence[str], index: int) -> str:
    """TF_CONFIG of a worker."""
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": list(cluster)}, "task": task})


@contextmanager
def processes(
    commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], folder: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process for each command; all of them and what they started are gone afterwards."""
    names = ("TF_CONFIG", "TF_USE_LEGACY_KERAS", "RANK", "WORLD_SIZE")
    base = {k: v for k, v in os.environ.items() if k not in names}
    base |= {"TRACEKIT_DIR": str(folder), "TRACEKIT_RUN": "run", "PYTHONPATH": str(ROOT)}
    base |= {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    started: list[subprocess.Popen[str]] = []
    try:
        for command, environment in zip(commands, environments, strict=True):
            started.append(
                subprocess.Popen(
                    [*command],
                    env={**base, **environment},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        yield started
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate()


def python(script: Path, *arguments: str) -> list[str]:
    """The command that runs a script."""
    return [sys.executable, str(script), *arguments]
