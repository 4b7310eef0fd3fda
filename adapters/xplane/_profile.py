"""What one host did in one profiler session, folded from the events of its planes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.adapters.xplane._intervals import Gathered
from tracekit.adapters.xplane._names import (
    What,
    collective_op,
    function_of,
    is_root,
    kernel_op,
    role_of_name,
)
from tracekit.adapters.xplane._space import (
    LAST_NS,
    Line,
    Plane,
    Space,
    Value,
    event_stats,
    starts_of,
)
from tracekit.adapters.xplane._wire import Events

__all__ = ["Call", "Kernel", "Marked", "Profile", "Stream", "read_profile"]

Ints = npt.NDArray[np.int64]

_HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:(GPU|TPU|CUSTOM):(?:.*?:)?(\d+)")
_STREAM = re.compile(r"Stream\s*#?(\d+)|XLA Ops|.*\bStream\b.*?(\d+)")
_TASK = re.compile(r"/job:(\w+)/replica:\d+/task:(\d{1,6})/")
_INPUT = "tf_data_"
"""Threads that prepare input run operations too; what they hold up shows where it is waited for."""
_COPIES = re.compile(r"mem(?:cpy|set)", re.IGNORECASE)
_ABSOLUTE_NS = 10**17
"""Times of lines beyond that are Unix times; others count from the start of the session."""
_MOST_CALLS = 1 << 20
_PHASES = (What.FORWARD, What.BACKWARD, What.OPTIMIZER)


@dataclass(slots=True)
class Call:
    """One collective on the host. What is not said is None."""

    op: str
    start_ns: int
    end_ns: int
    group: int | None = None
    instance: int | None = None
    """The number under which the members of a group find each other."""
    run: int | None = None
    """Which execution of a graph it is part of."""
    is_root: bool = False
    replicas: int = 1
    """Devices of this host that took part."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of NCCL's kernels."""

    op: str
    dtype: str | None
    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Stream:
    """What ran on one stream of a device."""

    device: int
    name: str
    kernels: Gathered = field(default_factory=Gathered)
    copies: Gathered = field(default_factory=Gathered)
    nccl: list[Kernel] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Marked:
    """A step that the loop marked, as ``tf.profiler.experimental.Trace(name, step_num=…)``."""

    name: str
    number: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Profile:
    """One host's part in a session; times are Unix times where ``aligned``."""

    host: str = ""
    aligned: bool = True
    phases: dict[What, Gathered] = field(
        default_factory=lambda: {phase: Gathered() for phase in _PHASES}
    )
    data: list[tuple[int, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    group_sizes: dict[int, int] = field(default_factory=dict)
    task: tuple[str, int] | None = None
    """The job and the index of this task in the cluster, where that is told."""
    marked: list[Marked] = field(default_factory=list)
    functions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    events: int = 0
    first_ns: int = LAST_NS
    last_ns: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing in it is of any use."""
        phases = any(phase.count for phase in self.phases.values())
        return not (phases or self.data or self.calls or self.streams)


def read_profile(space: Space, shift_ns: int = 0) -> Profile:
    """Fold the planes of a file; ``shift_ns`` is added to all times."""
    profile = Profile(next(iter(space.hosts), ""))
    start_ns = space.profile_start_ns
    for plane in space.planes:
        match = _DEVICE.match(plane.name)
        if plane.name != _HOST and match is None:
            continue
        reader = _Reader(space, plane, profile)
        for line in plane.lines:
            moved = shift_ns
            if line.start_ns < _ABSOLUTE_NS:
                moved += start_ns or 0
                profile.aligned &= start_ns is not None
            if match is not None:
                reader.device_line(line, moved, int(match[2]))
            else:
                reader.host_line(line, moved)
    profile.calls = _merged(profile.calls)
    return profile


class _Reader:
    """Reads the lines of one plane."""

    def __init__(self, space: Space, plane: Plane, profile: Profile) -> None:
        self.space, self.plane, self.profile = space, plane, profile
        self._what = {id_: role_of_name(name) for id_, name in plane.events.items()}
        self._marks_steps = "step_num" in plane.stats.values()
        self._marks: dict[int, bool] = {}

    def host_line(self, line: Line, moved: int) -> None:
        """Fold one thread."""
        for piece, events in self.space.events(line):
            starts, ends = self._times(events, line, moved)
            what = _mapped(events.id, self._what)
            profile = self.profile
            for phase in _PHASES:
                chosen = (what == phase) & (ends > starts)
                if chosen.any() and not line.name.startswith(_INPUT):
                    profile.phases[phase].add(starts[chosen], ends[chosen])
            for place in np.flatnonzero(what == What.DATA).tolist():
                if len(profile.data) < _MOST_CALLS:
                    profile.data.append((int(starts[place]), int(ends[place])))
            self._single(piece, events, starts, ends, what)
            if self._marks_steps:
                self._step_marks(piece, events, starts, ends)

    def _times(self, events: Events, line: Line, moved: int) -> tuple[Ints, Ints]:
        starts = np.clip(starts_of(events, line) + moved, 0, LAST_NS)
        ends = starts + np.minimum(events.duration_ps // 1000, LAST_NS)
        self.profile.events += len(starts)
        if len(starts):
            self.profile.first_ns = min(self.profile.first_ns, int(starts.min()))
            self.profile.last_ns = max(self.profile.last_ns, int(ends.max()))
        return starts, ends

    def _stats(self, piece: bytes, events: Events, place: int) -> Mapping[str, Value]:
        start, end = int(events.start[place]), int(events.end[place])
        return event_stats(piece, start, end, self.plane.stats)

    def _single(self, piece: bytes, events: Events, starts: Ints, ends: Ints, what: Ints) -> None:
        """The events that are looked at one by one: collectives, groups, calls of functions."""
        profile = self.profile
        for place in np.flatnonzero(what == What.COLLECTIVE).tolist():
            name = self.plane.events[int(events.id[place])]
            op = collective_op(name)
            if op is None or len(profile.calls) >= _MOST_CALLS:
                continue
            stats = self._stats(piece, events, place)
            profile.calls.append(
                Call(
                    op,
                    int(starts[place]),
                    int(ends[place]),
                    _number(stats.get("group_key")),
                    _number(stats.get("instance_key")),
                    _number(stats.get("step_id")),
                    is_root(name),
                )
            )
        for place in np.flatnonzero(what == What.GROUP).tolist():
            stats = self._stats(piece, events, place)
            key, size = _number(stats.get("group_key")), _number(stats.get("group_size"))
            if key is not None and size is not None and 0 < size < 1 << 31:
                profile.group_sizes[key] = size
        if profile.task is None:
            for place in np.flatnonzero(what == What.TASK).tolist()[:1]:
                told = _TASK.match(str(self._stats(piece, events, place).get("device", "")))
                profile.task = (told[1], int(told[2])) if told else None
        for place in np.flatnonzero(what == What.CALL).tolist():
            function = function_of(self.plane.events[int(events.id[place])])
            if function is not None:
                called = profile.functions.setdefault(function, [])
                called.append((int(starts[place]), int(ends[place])))

    def _step_marks(self, piece: bytes, events: Events, starts: Ints, ends: Ints) -> None:
        ids, first = np.unique(events.id, return_index=True)
        for id_, place in zip(ids.tolist(), first.tolist(), strict=True):
            if id_ not in self._marks:
                self._marks[id_] = "step_num" in self._stats(piece, events, place)
            if not self._marks[id_]:
                continue
            name = self.plane.events.get(id_, "step")
            for at in np.flatnonzero(events.id == id_).tolist():
                number = _number(self._stats(piece, events, at).get("step_num"))
                if number is not None and 0 <= number < 1 << 40:
                    self.profile.marked.append(Marked(name, number, int(starts[at]), int(ends[at])))

    def device_line(self, line: Line, moved: int, device: int) -> None:
        """Fold one stream; lines that only group what others hold are passed over."""
        match = _STREAM.match(line.name)
        if match is None:
            return
        named = match[1] or match[2] or line.name.lower().replace(" ", "-")
        stream = Stream(device, named)
        names = self.plane.events
        nccl = {id_: kernel_op(name) for id_, name in names.items()}
        copies = {id_ for id_, name in names.items() if _COPIES.match(name)}
        kind = {id_: 2 if nccl[id_] else 1 if id_ in copies else 0 for id_ in names}
        for _, events in self.space.events(line):
            starts, ends = self._times(events, line, moved)
            what = _mapped(events.id, kind)
            for code, into in ((0, stream.kernels), (1, stream.copies)):
                chosen = what == code
                if chosen.any():
                    into.add(starts[chosen], ends[chosen])
            for place in np.flatnonzero(what == 2).tolist():
                op = nccl[int(events.id[place])]
                if op is not None and len(stream.nccl) < _MOST_CALLS:
                    name = names[int(events.id[place])]
                    times = int(starts[place]), int(ends[place])
                    stream.nccl.append(Kernel(*op, name[:200], *times))
        if stream.kernels.count or stream.copies.count or stream.nccl:
            self.profile.streams.append(stream)


def _mapped(ids: Ints, codes: Mapping[int, int]) -> Ints:
    """The code of each id; 0 for unknown ones."""
    different, place = np.unique(ids, return_inverse=True)
    of = np.array([codes.get(id_, 0) for id_ in different.tolist()], np.int64)
    return of[place] if len(of) else np.zeros(0, np.int64)


def _number(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None


def _merged(calls: list[Call]) -> list[Call]:
    """Calls in order of time; those that devices of one host make together become one."""
    open_: dict[tuple[object, ...], Call] = {}
    merged: list[Call] = []
    for call in sorted(calls, key=lambda call: (call.start_ns, call.end_ns)):
        key = (call.op, call.group, call.instance, call.run)
        other = open_.get(key)
        if call.instance is not None and other is not None and call.start_ns < other.end_ns:
            other.end_ns = max(other.end_ns, call.end_ns)
            other.replicas += 1
            other.is_root |= call.is_root
            continue
        open_[key] = call
        merged.append(call)
    return merged
