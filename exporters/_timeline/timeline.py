"""A run as a timeline, whatever the format: a process a rank, a track a lane, and what stands
on them. Writers only put it into bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.dataset import Run
from tracekit.exporters._arrows import Arrow, Calls
from tracekit.exporters._records import Choice, read_records
from tracekit.exporters._timeline.tracks import sub_tracks
from tracekit.exporters._values import values

__all__ = ["Counter", "Instant", "Process", "Slice", "Timeline", "Track"]

_BATCH = 1 << 13
_LONGEST = np.iinfo(np.int64).max
_ORDER = ("thread:", "group:", "stream:")
_NESTLESS = ("group:", "stream:")
_IN_ARGS = (
    "step", "micro_step", "span_id", "parent_id", "launch_ns", "status", "clock", "device",
    "collective_op", "collective_group", "collective_seq", "collective_bytes",
    "collective_dtype", "group_size", "peer_rank", "attributes",
)  # fmt: skip
_FOR_ARROWS = (
    "rank", "step", "start_ns", "kind", "name", "collective_op", "collective_group",
    "collective_seq", "group_size", "peer_rank",
)  # fmt: skip
_NOTHING_SAID = {"status": "ok", "clock": "host"}
"""What goes without saying."""


@dataclass(frozen=True, slots=True)
class Process:
    """A rank."""

    rank: int
    name: str
    host: str
    """As the rank called it; empty where it said nothing."""
    clock: str
    """The domain of its times: only within one can they be compared. Empty where unknown."""

    @property
    def pid(self) -> int:
        """Process 0 has a meaning of its own in viewers."""
        return self.rank + 1


@dataclass(frozen=True, slots=True)
class Track:
    """A lane of a rank, or what did not fit onto it; ``tid`` is unique in the run."""

    process: Process
    tid: int
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A span on its track; ``row`` is what arrows name it by."""

    row: int
    track: Track
    name: str
    kind: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Counter:
    """A value that a rank had from some time on."""

    process: Process
    name: str
    time_ns: int
    value: float


@dataclass(frozen=True, slots=True)
class Instant:
    """An event without a value that can be drawn."""

    track: Track
    name: str
    time_ns: int
    args: dict[str, Any]


@dataclass(slots=True)
class _Facts:
    """What the facts say of ranks and groups."""

    hosts: dict[int, str] = field(default_factory=dict)
    domains: dict[int, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def take(self, rank: int | None, host: str | None, name: str, text: str) -> None:
        try:
            value = json.loads(text)
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        if name == "group" and "id" in value:
            self.groups[_text(value["id"])] = _text(value.get("name") or value["id"])
        if rank is None:
            return
        if name == "rank":
            self.hosts[rank] = _text(value.get("host") or host or "")
            if value.get("clock_domain"):
                self.domains.setdefault(rank, _text(value["clock_domain"]))
        elif name == "clock" and value.get("domain"):
            self.domains[rank] = _text(value["domain"])


class Timeline:
    """The chosen part of a run's last attempt.

    Raises ``UsageError`` where it is too much, or where there is no such step.
    """

    def __init__(self, run: Run, choice: Choice | None = None) -> None:
        choice = choice or Choice()
        records = read_records(run, choice)
        self._aligned = bool(choice.corrections)
        self._spans = records.spans
        self._events = records.events.sort_by([("rank", "ascending"), ("time_ns", "ascending")])
        self._facts = _Facts()
        columns = (values(records.facts[c]) for c in ("rank", "host", "name", "value"))
        for rank, host, name, text in zip(*columns, strict=True):
            self._facts.take(rank, host, name, text)
        self._sort()
        self._place()
        # Spans and events that are not on one clock with the others are shown, not compared.
        domains = {rank: process.clock for rank, process in self._processes.items()}
        self._calls = Calls(self._columns(_FOR_ARROWS), self._ends, domains)
        self.arrows: list[Arrow]
        self.arrows, self.waits = self._calls.arrows(choice.min_wait_ns, choice.max_arrows)
        times = [int(self._starts.min())] if len(self._starts) else []
        if len(self._events):
            times.append(min(values(self._events["time_ns"])))
        self.base_ns = min(times, default=0)
        self.attempt = records.attempt

    @property
    def spans(self) -> int:
        """How many spans are shown."""
        return len(self._starts)

    @property
    def processes(self) -> list[Process]:
        """The ranks."""
        return list(self._processes.values())

    @property
    def clocks(self) -> int:
        """How many clocks the times are of; between two of them nobody measured the offset."""
        return len({process.clock for process in self.processes})

    @property
    def tracks(self) -> list[Track]:
        """The tracks, in the order in which they should stand."""
        return self._tracks

    def _columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        order = pa.array(self._order)
        return {name: values(self._spans[name].take(order)) for name in names}

    def _sort(self) -> None:
        """Order the spans by rank and start, the longest first, the elder first."""
        ranks = self._spans["rank"].to_numpy().astype(np.int64)
        starts = self._spans["start_ns"].to_numpy()
        durations = self._spans["duration_ns"].to_numpy()
        ends = starts + np.clip(durations, 0, _LONGEST - np.maximum(starts, 0))
        order = np.lexsort((self._spans["span_id"].to_numpy(), -ends, starts, ranks))
        self._order, self._ranks = order, ranks[order]
        self._starts, self._ends = starts[order], ends[order]

    def _place(self) -> None:
        """Give each span a track, and the tracks their order and names."""
        columns = self._columns(("kind", "lane", "span_id", "parent_id"))
        lanes = [lane or "thread:" for lane in columns["lane"]]
        told = values(self._events["rank"])
        self._event_ranks = np.array(told, np.int64)
        shown = [*self._facts.hosts, *np.unique(self._ranks).tolist(), *told]
        self._processes = {rank: self._process(rank) for rank in sorted(set(shown))}
        self._tracks: list[Track] = []
        self._track_of = np.zeros(len(lanes), np.int64)
        self._events_track: dict[int, Track] = {}
        shown_as = zip(told, values(self._events["value"]), strict=True)
        instants = {rank for rank, value in shown_as if not _drawn(value)}
        next_tid = max(self._processes, default=0) + 2
        codes = {lane: code for code, lane in enumerate(dict.fromkeys(lanes))}
        for rank, process in self._processes.items():
            low, high = _rows_of(self._ranks, rank)
            mine = lanes[low:high]
            rows = zip(
                self._starts[low:high].tolist(),
                self._ends[low:high].tolist(),
                columns["span_id"][low:high],
                columns["parent_id"][low:high],
                [codes[lane] for lane in mine],
                [not lane.startswith(_NESTLESS) for lane in mine],
                strict=True,
            )
            places = list(zip(mine, sub_tracks(rows), strict=True))
            main = {
                lane for lane, kind in zip(mine, columns["kind"][low:high], strict=True)
                if kind == "step"
            }  # fmt: skip
            numbers: dict[tuple[str, int], int] = {}
            for lane, sub in sorted(set(places), key=lambda place: _rank_of_lane(place, main)):
                numbers[lane, sub] = len(self._tracks)
                # The first one has the number of its process: viewers take it for the main thread.
                tid = process.pid if len(numbers) == 1 else next_tid
                next_tid += len(numbers) > 1
                name = self._lane_name(lane) + (f" ({sub + 1})" if sub else "")
                self._tracks.append(Track(process, tid, name))
            self._track_of[low:high] = [numbers[place] for place in places]
            if rank in instants:
                self._events_track[rank] = Track(process, next_tid, "events")
                self._tracks.append(self._events_track[rank])
                next_tid += 1

    def _process(self, rank: int) -> Process:
        host = self._facts.hosts.get(rank, "")
        name = f"rank {rank} ({host})" if host else f"rank {rank}"
        clock = "aligned" if self._aligned else self._facts.domains.get(rank) or host
        return Process(rank, name, host, clock)

    def _lane_name(self, lane: str) -> str:
        shape, _, name = lane.partition(":")
        if shape == "thread":
            return name or "thread"
        return f"group {self._group_name(name)}" if shape == "group" else lane.replace(":", " ")

    def _group_name(self, group: str) -> str:
        return self._facts.groups.get(group, group)

    def _drawn(self) -> list[bool]:
        """Which events have a value that a counter can show."""
        found = values(self._events["value"])
        return [value is not None and math.isfinite(value) for value in found]

    def slices(self, rank: int | None = None) -> Iterator[Slice]:
        """The spans, of one rank or rank by rank, by start, the outer before the inner."""
        first, behind = _rows_of(self._ranks, rank)
        for low in range(first, behind, _BATCH):
            high = min(low + _BATCH, behind)
            batch = self._spans.take(pa.array(self._order[low:high]))
            names, kinds = values(batch["name"]), values(batch["kind"])
            args = _args(batch)
            track_of = self._track_of[low:high].tolist()
            starts, ends = self._starts[low:high].tolist(), self._ends[low:high].tolist()
            for place in range(high - low):
                yield Slice(
                    low + place,
                    self._tracks[track_of[place]],
                    names[place],
                    kinds[place],
                    starts[place],
                    ends[place],
                    args[place],
                )

    def track_of(self, row: int) -> Track:
        """The track of a span."""
        return self._tracks[int(self._track_of[row])]

    def counters(self, rank: int | None = None) -> Iterator[Counter]:
        """Values of events, and how late ranks came to collectives, each by time."""
        for of, time, name, value, _, _ in self._event_rows(rank):
            if _drawn(value):
                yield Counter(self._processes[of], name, time, value)
        late, ranks = self._late
        first, behind = _rows_of(ranks, rank)
        for of, time, group, ms in late[first:behind]:
            name = f"lateness in group {self._group_name(group)}, ms"
            yield Counter(self._processes[of], name, time, ms)

    @cached_property
    def _late(self) -> tuple[list[tuple[int, int, str, float]], npt.NDArray[np.int64]]:
        """Rank, time, group and milliseconds of what came late, in order; and the ranks alone."""
        late = sorted(
            (int(self._ranks[one.row]), int(self._starts[one.row]), one.group, one.ms)
            for one in self._calls.lateness()
        )
        return late, np.array([of for of, _, _, _ in late], np.int64)

    def instants(self, rank: int | None = None) -> Iterator[Instant]:
        """The events that no counter shows; NaN among them, as a word."""
        for of, time, name, value, text, more in self._event_rows(rank):
            if not _drawn(value):
                args: dict[str, Any] = {"time_ns": time}
                if value is not None:
                    args["value"] = str(value)
                if text is not None:
                    args["text"] = text
                if more:
                    args["attributes"] = more
                yield Instant(self._events_track[of], name, time, args)

    def _event_rows(self, rank: int | None) -> Iterator[tuple[Any, ...]]:
        names = ("rank", "time_ns", "name", "value", "text", "attributes")
        first, behind = _rows_of(self._event_ranks, rank)
        rows = self._events.slice(first, behind - first)
        return zip(*(values(rows[name]) for name in names), strict=True)


def _rows_of(ranks: npt.NDArray[np.int64], rank: int | None) -> tuple[int, int]:
    """From where to where the rows of a rank stand among ordered ones; of all for None."""
    if rank is None:
        return 0, len(ranks)
    first, behind = np.searchsorted(ranks, [rank, rank + 1]).tolist()
    return first, behind


def _drawn(value: float | None) -> bool:
    """Whether a counter can show the value of an event."""
    return value is not None and math.isfinite(value)


def _text(value: Any) -> str:
    """A value of a fact as text; JSON can name half a character, which no other format can."""
    return str(value).encode("utf-8", "replace").decode()


def _rank_of_lane(place: tuple[str, int], main: set[str]) -> tuple[Any, ...]:
    """Where a lane stands: the one with the steps first, then threads, groups, streams."""
    lane, sub = place
    shape = next((i for i, start in enumerate(_ORDER) if lane.startswith(start)), len(_ORDER))
    return lane not in main, shape, lane, sub


def _args(batch: pa.Table) -> list[dict[str, Any]]:
    """What a viewer shows of each span when it is chosen; exact times first."""
    both = zip(values(batch["start_ns"]), values(batch["duration_ns"]), strict=True)
    found: list[dict[str, Any]] = [{"start_ns": s, "duration_ns": d} for s, d in both]
    for args, is_open in zip(found, values(batch["is_open"]), strict=True):
        if is_open:
            args["is_open"] = True
    for name in _IN_ARGS:
        column = batch[name]
        if column.null_count == len(column):
            continue
        usual = _NOTHING_SAID.get(name)
        for args, value in zip(found, values(column), strict=True):
            if value is not None and value != usual and value != {}:
                args[name] = value
    return found
