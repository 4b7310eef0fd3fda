"""How fast a journal becomes Parquet and parts are compacted, and how many bytes a span takes.

The journal is that of a real demo, tiled: what happens in its most usual kind of step is recorded
again and again through the recorder, with a clock that says the times. The time from each begin or
end to the next is drawn from a log-normal distribution with the demo's own mean and spread, so no
two steps are alike. 200 names take turns, and a fifth of the spans have attributes. Converting and
compacting are charged by CPU time on one core.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from time import process_time
from typing import Any

import pyarrow as pa

import tracekit
from benchmarks.rows import Row, main
from tracekit import recorder
from tracekit.dataset import compact, convert, open_run
from tracekit.journal.reader import find_journals, open_journal
from tracekit.model import Collective
from tracekit.recorder import SpanType, span, span_type
from tracekit.recorder import spans as recording

VARIANTS = 30
"""Each of the demo's names but the step's has so many forms."""
ATTRIBUTED = 0.1
"""Of the spans that have none in the demo; with those that have some it makes a fifth."""


@dataclass(frozen=True)
class Moment:
    """A span begins or ends, and how long after the moment before: mean and spread of the log."""

    row: dict[str, Any]
    begins: bool
    mean: float
    spread: float


def usual_step(folder: Path) -> list[Moment]:
    """What happens in the most usual kind of step of rank 0 of a real demo."""
    command = [sys.executable, "-m", "tracekit", "demo", "--ranks", "2", "--steps", "60"]
    command += ["--format", "json", "-o", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open_run(folder) as run:
        rows = run.table("spans").to_pylist()
    steps: dict[int, list[tuple[int, bool, dict[str, Any]]]] = {}
    for row in rows:
        if row["rank"] == 0 and row["step"] is not None and not row["is_open"]:
            moments = steps.setdefault(row["step"], [])
            moments.append((row["start_ns"], True, row))
            moments.append((row["start_ns"] + row["duration_ns"], False, row))
    kinds: dict[tuple[Any, ...], list[list[tuple[int, bool, dict[str, Any]]]]] = {}
    for moments in steps.values():
        moments.sort(key=lambda moment: moment[0])
        kind = tuple((row["name"], begins) for _, begins, row in moments)
        kinds.setdefault(kind, []).append(moments)
    alike = max(kinds.values(), key=len)
    usual = []
    for place, (_, begins, row) in enumerate(alike[0]):
        before = max(0, place - 1)
        gaps = [math.log(max(1, step[place][0] - step[before][0])) for step in alike]
        usual.append(Moment(row, begins, fmean(gaps), pstdev(gaps)))
    return usual


class Tape:
    """Records steps like a given one, at times of its own."""

    def __init__(self, usual: list[Moment]) -> None:
        made = recorder.current()
        assert made is not None
        self.recorder = made
        self.usual = usual
        self.now = recorder.clock()
        self.spans = 0
        self.chance = random.Random(0)
        self.types: dict[tuple[Any, ...], SpanType] = {}

    def record(self, number: int) -> None:
        """Record one more step."""
        opened: dict[int, Any] = {}
        for moment in self.usual:
            row = moment.row
            self.now += round(math.exp(self.chance.gauss(moment.mean, moment.spread)))
            if row["kind"] == "step":
                if moment.begins:
                    self.recorder.begin_step(number)
                else:
                    self.recorder.end_step()
            elif row["collective_op"] is not None:
                if moment.begins:
                    opened[row["span_id"]] = self.now
                else:
                    self.collective(row, opened[row["span_id"]], number)
            elif moment.begins:
                opened[row["span_id"]] = self.use(row, number)
                opened[row["span_id"]].__enter__()
            else:
                opened[row["span_id"]].__exit__(None, None, None)
        self.spans += len(self.usual) // 2

    def use(self, row: dict[str, Any], number: int) -> Any:
        name = f"{row['name']}.{number % VARIANTS}"
        if self.chance.random() < ATTRIBUTED:
            return span(name, kind=row["kind"], batch=64, index=number)
        return span(name, kind=row["kind"])

    def collective(self, row: dict[str, Any], start: int, number: int) -> None:
        key = (row["collective_op"], row["lane"], number % VARIANTS)
        if key not in self.types:
            group = (row["collective_group"], row["group_size"], row["collective_dtype"])
            lane = None if row["lane"].startswith("thread:") else row["lane"]
            what = f"{row['name']}.{number % VARIANTS}"
            collective = Collective(row["collective_op"], *group, row["peer_rank"])
            self.types[key] = span_type(what, "comm", collective, lane)
        attributes = {"buckets": 1} if row["attributes"] else {}
        if row["launch_ns"] is not None:
            attributes["launch_ns"] = start - round(self.chance.expovariate(1e-5))
        nbytes = row["collective_bytes"]
        self.types[key].complete(start, self.now, number, nbytes, attributes)


def tiled(folder: Path, usual: list[Moment], spans: int) -> Path:
    """A journal of so many spans; returns the run's directory."""
    real = recording.clock
    tracekit.start(
        run="tiled", dir=str(folder), rank=0, world_size=1, agent=False, quota_bytes=1 << 40
    )
    try:
        tape = Tape(usual)
        recording.clock = lambda: tape.now
        number = 0
        while tape.spans < spans:
            tape.record(number)
            number += 1
    finally:
        recording.clock = real
        tracekit.stop()
    return folder / "tiled"


def size(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files if "spans" in path.parts)


def benchmark(long: bool) -> Iterator[Row]:
    folder = Path(tempfile.mkdtemp(prefix="tracekit-bench-"))
    try:
        run_dir = tiled(folder, usual_step(folder / "demo"), 2_000_000 if long else 400_000)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        pa.set_cpu_count(1)
        (head,) = find_journals(run_dir / "attempt-000" / "journal")
        begun = process_time()
        done = convert(open_journal(head), run_dir)
        speed = done.spans / (process_time() - begun) / 1e6
        parts = size(done.files) / done.spans
        yield Row(
            f"journal to Parquet, {done.spans:,} spans",
            f"{speed:.2f} M spans/s a core",
            ">= 2 M",
            speed >= 2,
        )
        begun = process_time()
        compacted = compact(run_dir)
        speed = compacted.rows / (process_time() - begun) / 1e6
        whole = size(compacted.files) / done.spans
        yield Row("compaction", f"{speed:.2f} M rows/s a core", ">= 1 M", speed >= 1)
        yield Row(
            "bytes a span, 200 names, a fifth with attributes",
            f"{parts:.1f} in parts, {whole:.1f} compacted",
            "<= 12",
            max(parts, whole) <= 12,
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(benchmark, __doc__)
