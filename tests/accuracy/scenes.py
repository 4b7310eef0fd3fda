"""A job that went wrong, in as many sources as one likes, and the verdict of the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.adapters.flight_recorder.samples import Job, entry
from tests.adapters.nccl.logs import Rank
from tests.adapters.text_logs.logs import traceback
from tracekit.cli import main
from tracekit.dataset import TABLES, write_table
from tracekit.testing import RunBuilder

__all__ = ["CLOSED", "KILLED", "TERMINATED", "Scene", "alerts"]

KILLED = {"state": "signal", "signal": 9, "source": "launcher"}
TERMINATED = {"state": "signal", "signal": 15, "source": "launcher"}
CLOSED = "RuntimeError: [../pair.cc:553] Connection closed by peer [10.0.0.1]:2987"


def alerts(told: Mapping[str, Any]) -> list[tuple[str, list[int], str]]:
    """What is above information: class, ranks and certainty of each."""
    return [
        (one["class"], one["ranks"], one["certainty"])
        for one in told["findings"]
        if one["severity"] != "info" and one["id"] != "coverage.partial"
    ]


class Scene:
    """Files of one job in a folder; each source is added by a call."""

    def __init__(self, folder: Path, world: int = 4, hosts: Sequence[str] = ("node-0",)) -> None:
        self.folder, self.world = folder, world
        self.run = RunBuilder(world_size=world, jitter=0.05, hosts=hosts)
        self.run.steps(20)
        self.paths: dict[str, Path] = {}

    @property
    def now(self) -> int:
        return max(self.run.now)

    def journal(self) -> None:
        """What the ranks recorded, as a run directory."""
        path = self.folder / "run"
        path.mkdir()
        (path / "run.json").write_text('{"uid": "run", "label": "run"}')
        for name, rows in (("spans", self.run.spans), ("facts", self.run.facts)):
            table = pa.Table.from_pylist(rows, schema=TABLES[name])
            write_table(path, name, table, world_size=self.world)
        self.paths["journal"] = path

    def text(self, name: str, text: str) -> None:
        """A text file, written when the job ended."""
        path = self.folder / "logs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(self.now, self.now))
        self.paths[name] = path

    def dumps(
        self,
        calls: Mapping[int, int],
        *,
        looks: int = 1,
        sizes: Mapping[int, int] | None = None,
    ) -> None:
        """Dumps of Flight Recorder: the last call of each rank; the highest number is open."""
        top = max(calls.values())
        for look in range(looks):
            job = Job(self.folder / "dumps" / str(look), {"0": range(self.world)})
            for rank, last in calls.items():
                size = (sizes or {}).get(rank, 8)
                entries = [entry(seq, at=self.now - 10**10) for seq in range(last - 10, last)]
                state = "started" if last == top else "completed"
                entries.append(entry(last, state=state, sizes=((size,),), at=self.now - 10**10))
                path = job.dump(rank, entries)
                written = self.now + look * 60 * 10**9
                os.utime(path, ns=(written, written))
        self.paths["dumps"] = self.folder / "dumps"

    def lost(self, ranks: Iterable[int]) -> str:
        """What ranks write that lost their connection to another one."""
        return "".join(traceback(rank, CLOSED) for rank in ranks)

    def nccl(self, warnings: Mapping[int, str]) -> None:
        """Logs of NCCL of all ranks, with a warning at the end of some."""
        for rank in range(self.world):
            process = Rank(rank, self.world).healthy()
            if rank in warnings:
                process.warn(warnings[rank])
            self.text(f"nccl.{rank}.log", "\n".join(process.lines) + "\n")

    def told(self, but: Iterable[str] = (), paths: Sequence[Path] | None = None) -> Any:
        """The verdict of ``tracekit analyze`` as JSON, without some of the sources."""
        left = [path for name, path in self.paths.items() if name not in set(but)]
        output = self.folder / "told.json"
        given = [str(path) for path in (paths or left)]
        assert main(["analyze", *given, "--format", "json", "-o", str(output)]) == 0
        return json.loads(output.read_text())
