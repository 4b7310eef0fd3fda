"""Processes that are killed while they record, and the account of what must be left of them.

A victim numbers its spans and acknowledges them through a pipe. After its death everything it
acknowledged must be in the run, and nothing twice. Its moments of death:

    recording    in the middle of a record, most likely
    rotating     segments so small that a new one is always being made or sealed
    converting   meanwhile another process turns its journal into Parquet, and is killed too
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tracekit.dataset import open_run
from tracekit.errors import InputError

__all__ = ["MOMENTS", "Outcome", "kill_one"]

MOMENTS = ("recording", "rotating", "converting")
_SEGMENT_BYTES = {"recording": 4 << 20, "rotating": 64 << 10, "converting": 64 << 10}
_ACKNOWLEDGE = struct.Struct("q")
_ROOT = Path(__file__).resolve().parents[2]

_RECORD = """
import os, struct, sys, time
import tracekit
from tracekit.model import Collective
from tracekit.recorder import clock, span_type

pipe, segment_bytes, pause = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
tracekit.start(
    run="run", dir=sys.argv[1], rank=0, world_size=1, agent=False, segment_bytes=segment_bytes
)
plain = span_type("plain")
reduce = span_type("reduce", "comm", Collective("all_reduce", "g", 1))
gather = span_type("gather", "comm", Collective("all_gather", "g", 1))
number = 0
while True:
    for _ in range(4):
        with tracekit.span("work", kind="user", number=number, text="t"):
            reduce.end(reduce.begin(seq=number))
        gather.complete(clock(), clock(), seq=number, attributes={"number": number})
        for _ in range(20):
            with plain:
                pass
        number += 1
    os.write(pipe, struct.pack("q", number))
    if pause:
        time.sleep(pause)
"""

_CONVERT = """
import os, sys
from pathlib import Path
from tracekit.dataset import convert, drop_covered_segments
from tracekit.journal.reader import find_journals, open_journal

run_dir = Path(sys.argv[1]) / "run"
(head,) = find_journals(run_dir / "attempt-000" / "journal")
journal = open_journal(head)
while True:
    os.write(int(sys.argv[2]), b".")
    journal.refresh()
    convert(journal, run_dir)
    drop_covered_segments(journal, run_dir)
"""


@dataclass(frozen=True)
class Outcome:
    """What a victim acknowledged, what was found of it, and what was wrong with that."""

    acknowledged: int
    found: int
    torn: int
    parts: int
    wrong: tuple[str, ...]


def kill_one(folder: Path, moment: str, chance: random.Random) -> Outcome:
    """Let a victim record, kill it, and hold what is found against what it acknowledged."""
    pause = 0.001 if moment == "converting" else 0.0
    with _Process(_RECORD, folder, str(_SEGMENT_BYTES[moment]), str(pause)) as victim:
        victim.read(_ACKNOWLEDGE.size)
        if moment == "converting":
            for _ in range(chance.choice((1, 1, 2))):
                with _Process(_CONVERT, folder) as converter:
                    converter.read(chance.randint(1, 4))  # so many times it has begun
                    time.sleep(chance.uniform(0, 0.05))
        time.sleep(chance.uniform(0, 0.02))
        acknowledged = victim.kill()
    return _account(folder / "run", acknowledged)


class _Process:
    """A process that says through a pipe how far it is, until it is killed."""

    def __init__(self, script: str, folder: Path, *arguments: str) -> None:
        self._pipe, write = os.pipe()
        command = [sys.executable, "-c", script, str(folder), str(write), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        self._process = subprocess.Popen(command, pass_fds=[write], env=environment)
        os.close(write)
        self._said = b""

    def read(self, least: int) -> None:
        """Wait until it has said so many bytes."""
        while len(self._said) < least:
            more = os.read(self._pipe, 1 << 16)
            if not more:
                raise RuntimeError(f"ended early: {self._process.wait()}")
            self._said += more

    def kill(self) -> int:
        """SIGKILL; returns the last number that it wrote."""
        self._process.kill()
        self._process.wait()
        while more := os.read(self._pipe, 1 << 16):
            self._said += more
        whole = len(self._said) // _ACKNOWLEDGE.size * _ACKNOWLEDGE.size
        if not whole:
            return 0
        return int(_ACKNOWLEDGE.unpack(self._said[whole - _ACKNOWLEDGE.size : whole])[0])

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._pipe)


def _account(run_dir: Path, acknowledged: int) -> Outcome:
    """Open what the dead left behind, and compare."""
    wrong: list[str] = []
    try:
        run = open_run(run_dir)
    except InputError as error:
        return Outcome(acknowledged, 0, 0, 0, (str(error),))
    with run:
        columns = ["name", "span_id", "collective_seq", "is_open", "attributes"]
        table = run.table("spans", columns)
        rows = [row for row in table.to_pylist() if not row["is_open"]]
        torn = run.coverage.torn_slots
        if run.coverage.skipped:
            wrong.append(f"skipped: {run.coverage.skipped}")
    twice = [id_ for id_, times in Counter(row["span_id"] for row in rows).items() if times > 1]
    if twice:
        wrong.append(f"{len(twice)} spans are there twice, the first is {twice[0]}")
    numbers: dict[str, list[int]] = {"work": [], "reduce": [], "gather": []}
    for row in rows:
        if row["name"] in numbers:
            attributes = dict(row["attributes"] or ())
            number = int(attributes.get("number", -1))
            if row["name"] == "reduce":
                number = row["collective_seq"]
            elif row["name"] == "gather" and number != row["collective_seq"]:
                wrong.append(f"gather {row['collective_seq']} has lost its attributes")
            numbers[row["name"]].append(number)
    for name, found in numbers.items():
        missing = set(range(acknowledged)) - set(found)
        if missing:
            wrong.append(f"{name}: {len(missing)} of {acknowledged} missing from {min(missing)} on")
        if len(set(found)) != len(found):
            wrong.append(f"{name}: a number is there twice")
    plain = sum(row["name"] == "plain" for row in rows)
    if plain < acknowledged * 20:
        wrong.append(f"plain: {plain} of {acknowledged * 20}")
    return Outcome(
        acknowledged * 23,
        len(rows),
        torn,
        len(list(run_dir.glob("spans/**/*.parquet"))),
        tuple(wrong),
    )
