"""Run directories to export, and a Chrome trace read back with nothing but ``json``."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tracekit.dataset import open_run, write_table
from tracekit.exporters import chrome_trace
from tracekit.exporters.chrome_trace import Choice
from tracekit.testing.builder import RunBuilder

Json = dict[str, Any]


def write_run(built: RunBuilder, path: Path) -> Path:
    """The directory of a run that was built."""
    for name, rows in built.tables().items():
        if len(rows):
            write_table(path, name, rows, world_size=built.world_size)
    return path


@st.composite
def any_spans(draw: st.DrawFn, ranks: int = 1) -> RunBuilder:
    """Ranks of which the first has a step, and all have spans that overlap in all ways."""
    built = RunBuilder(ranks)
    built.span(0, "step", 0, 100, "train_step")
    lane = st.sampled_from(["thread:a", "thread:MainThread", "group:b", "stream:cuda:0:7"])
    parent = st.one_of(st.none(), st.integers(1, 12))
    rank = st.integers(0, ranks - 1)
    row = st.tuples(rank, st.integers(0, 30), st.integers(0, 15), lane, parent)
    for of, start, length, on, under in draw(st.lists(row, max_size=25)):
        built.span(of, "user", start, start + length, lane=on, parent=under)
    return built


@dataclass
class Chrome:
    """A Chrome trace as a viewer sees it."""

    whole: Json

    def events(self, phase: str, **wanted: Any) -> list[Json]:
        return [
            event
            for event in self.whole["traceEvents"]
            if event["ph"] == phase and all(event.get(k) == v for k, v in wanted.items())
        ]

    @property
    def slices(self) -> list[Json]:
        return [event for event in self.events("X") if event["cat"] != "wait"]

    @property
    def marks(self) -> list[Json]:
        """The ends of arrows: which rank came when."""
        return self.events("X", cat="wait")

    @property
    def base(self) -> int:
        return int(self.whole["otherData"]["base_ns"])

    def tracks(self) -> dict[tuple[int, int], list[tuple[int, int, Json]]]:
        """Start, end (exact) and event of the slices of each track, in the order of the file."""
        found: dict[tuple[int, int], list[tuple[int, int, Json]]] = {}
        for event in self.slices:
            start = self.base + round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            found.setdefault((event["pid"], event["tid"]), []).append((start, end, event))
        return found

    def names(self, what: str) -> dict[int, str]:
        """Names of processes by pid, or of threads by tid."""
        key = "pid" if what == "process_name" else "tid"
        return {e[key]: e["args"]["name"] for e in self.events("M", name=what)}

    def at(self, flow: Json) -> list[Json]:
        """The slices that are open on the track of an end of an arrow, the innermost last."""
        time = self.base + round(flow["ts"] * 1000)
        slices = self.tracks()[flow["pid"], flow["tid"]]
        return [event for start, end, event in slices if start <= time < end]


def not_finite(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def exported(source: RunBuilder | Path, folder: Path, choice: Choice | None = None) -> Chrome:
    """A run as a Chrome trace."""
    path = source if isinstance(source, Path) else write_run(source, folder / "run")
    file = io.BytesIO()
    with open_run(path) as run:
        chrome_trace.export(run, file, choice)
    return Chrome(json.loads(file.getvalue(), parse_constant=not_finite))


def overlaps(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of a track, in order, that neither lie in the one before nor after it."""
    inside: list[int] = []
    wrong = []
    for start, end in spans:
        while inside and inside[-1] <= start:
            inside.pop()
        if inside and inside[-1] < end:
            wrong.append((start, end))
        inside.append(end)
    return wrong


def not_text(data: bytes) -> pa.Array:
    """A text as a damaged or foreign file may hold it."""
    return pa.Array.from_buffers(pa.string(), *_buffers(data))


def _buffers(data: bytes) -> tuple[int, list[pa.Buffer | None]]:
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    return 1, [None, offsets, pa.py_buffer(data)]
