"""A profile becomes rows of ``spans``: few a step, with the time of each class kept.

Operations of all threads are united by phase, and the smallest gaps of the union are closed
until they are one percent of the step. What of a collective nothing was computed in becomes a
``wait`` beside it, so that the shares of a step come out as for any other run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.adapters.xplane._intervals import NONE, Pair, bridge, minus, union
from tracekit.adapters.xplane._names import What
from tracekit.adapters.xplane._profile import Call, Kernel, Profile
from tracekit.adapters.xplane._steps import Step, evaluations
from tracekit.dataset.schema import SPANS
from tracekit.model import group_id

__all__ = ["Owner", "group_name", "span_rows"]

Ints = npt.NDArray[np.int64]

_CLOSED = 100
"""The part of a step by which closed gaps may add to a phase: one in so many."""
_CLOSED_OUTSIDE = 20
"""The same between two steps, where nobody looks closely."""
_AT_ONCE = 1 << 14
_STEP_SEQ = 1 << 20
"""Numbers of collectives in one step."""
_INSTANCES, _TIMES = 1 << 16, 1 << 4
_PHASES = {What.FORWARD: "forward", What.BACKWARD: "backward", What.OPTIMIZER: "optimizer"}
_COMPUTE, _INPUT, _WAIT = "thread:tf:compute", "thread:tf:input", "thread:tf:wait"
_FROM = [("source", '"xplane"')]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose rows they are. ``first_id`` is the first id of a span that is free."""

    run_id: str
    attempt: int
    rank: int
    world_size: int = 0
    first_id: int = 1


@dataclass(slots=True)
class _Rows:
    """Columns that grow."""

    owner: Owner
    columns: dict[str, list[Any]] = field(default_factory=lambda: {n: [] for n in SPANS.names})
    count: int = 0
    made: list[pa.Table] = field(default_factory=list)

    def add(self, kind: str, name: str, lane: str, start: int, end: int, **more: Any) -> int:
        """Add a span; the id it has."""
        owner, columns = self.owner, self.columns
        id_ = owner.first_id + self.count
        self.count += 1
        row = {
            "run_id": owner.run_id,
            "attempt": owner.attempt,
            "rank": owner.rank,
            "kind": kind,
            "name": name,
            "lane": lane,
            "clock": "host",
            "span_id": id_,
            "start_ns": start,
            "duration_ns": max(0, end - start),
            "is_open": False,
            "status": "ok",
            "attributes": _FROM,
            **more,
        }
        for column, values in columns.items():
            values.append(row.get(column))
        if len(columns["kind"]) >= _AT_ONCE:
            self._fold()
        return id_

    def table(self) -> pa.Table:
        """All of them."""
        self._fold()
        return pa.concat_tables(self.made).unify_dictionaries()

    def _fold(self) -> None:
        """Lists of Python's numbers take ten times as much memory as columns."""
        arrays = []
        for column in SPANS:
            plain = pa.types.is_dictionary(column.type)
            made = pa.array(self.columns[column.name], pa.string() if plain else column.type)
            arrays.append(made.dictionary_encode() if plain else made)
        self.made.append(pa.Table.from_arrays(arrays, schema=SPANS))
        for values in self.columns.values():
            values.clear()


class _Steps:
    """Where in the steps an instant lies."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self._starts = np.array([step.start_ns for step in steps], np.int64)
        self._ends = np.array([step.end_ns for step in steps], np.int64)
        self.ids: list[int | None] = [None] * len(steps)

    def places(self, starts: Ints) -> Ints:
        """The place of the step of each instant; -1 where it is in none."""
        if not len(self.steps):
            return np.full(len(starts), -1)
        place = np.searchsorted(self._starts, starts, "right") - 1
        inside = (place >= 0) & (starts < self._ends[np.maximum(place, 0)])
        return np.where(inside, place, -1)

    def place(self, start: int) -> int:
        """The place of the step of one instant."""
        return int(self.places(np.array([start], np.int64))[0])

    def keys(self, place: int) -> dict[str, int | None]:
        """The columns that say to which step a span belongs."""
        if place < 0:
            return {"step": None, "parent_id": None}
        return {"step": self.steps[place].number, "parent_id": self.ids[place]}

    def length(self, place: int) -> int:
        """How long the step is; of what lies outside of steps nothing is closed."""
        return self.steps[place].end_ns - self.steps[place].start_ns if place >= 0 else 0

    def each(self, pair: Pair) -> Iterator[tuple[int, Pair]]:
        """The intervals of a union step by step."""
        starts, ends = pair
        places = self.places(starts)
        cuts = np.flatnonzero(np.diff(places)) + 1
        for some in np.split(np.arange(len(starts)), cuts):
            if len(some):
                yield int(places[some[0]]), (starts[some], ends[some])


def group_name(profile: Profile, key: int | None, owner: Owner, replicas: int) -> tuple[str, int]:
    """A group's name, the same on all workers, and how many ranks are in it (0: not known)."""
    devices = profile.group_sizes.get(key, 0) if key is not None else 0
    size = devices // max(1, replicas)
    if size and size == (owner.world_size or size):
        return group_id(range(size)), size
    if not size and owner.world_size > 1 and len({call.group for call in profile.calls}) <= 1:
        return group_id(range(owner.world_size)), owner.world_size
    return f"tf-{key}", size


def span_rows(
    profile: Profile, steps: Sequence[Step], owner: Owner, *, with_steps: bool = True
) -> pa.Table:
    """The spans of a profile, in no order; the steps too, unless somebody else has them."""
    rows, where = _Rows(owner), _Steps(steps)
    if with_steps:
        for place, step in enumerate(steps):
            where.ids[place] = rows.add(
                "step", "train_step", "thread:main", step.start_ns, step.end_ns, step=step.number
            )
    for start, end in evaluations(profile):
        rows.add("eval", "eval", "thread:main", start, end, **where.keys(where.place(start)))
    data = union(*_pair(profile.data))
    for place, (starts, ends) in where.each(data):
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            rows.add("data", "next", _INPUT, start, end, **where.keys(place))
    busy = _compute(rows, profile, where)
    kernels = [kernel for stream in profile.streams for kernel in stream.nccl]
    if kernels:
        _nccl(rows, profile, where, busy)
    else:
        _collectives(rows, profile, where, busy)
    return rows.table()


def _pair(times: Sequence[tuple[int, int]]) -> Pair:
    found = np.array(times, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _compute(rows: _Rows, profile: Profile, where: _Steps) -> Pair:
    """Add what was computed; when that was, as a union."""
    streams = [(s, s.kernels.united()) for s in profile.streams if s.kernels.count]
    if streams or any(stream.nccl for stream in profile.streams):
        for stream, pair in streams:
            lane = f"stream:{stream.device}:{stream.name}"
            _add(rows, where, pair, "kernel", "kernels", lane, device=stream.device)
        for stream in profile.streams:
            lane = f"stream:{stream.device}:{stream.name}"
            pair = stream.copies.united()
            _add(rows, where, pair, "memcpy", "copies", lane, device=stream.device)
        return _all([pair for _, pair in streams])
    united = {what: profile.phases[what].united() for what in _PHASES}
    whole = _all(list(united.values()))
    if not len(united[What.BACKWARD][0]) and not len(united[What.OPTIMIZER][0]):
        _add(rows, where, whole, "kernel", "compute", _COMPUTE)
        return whole
    for what, kind in _PHASES.items():
        _add(rows, where, united[what], kind, kind, _COMPUTE)
    return whole


def _all(pairs: list[Pair]) -> Pair:
    if not pairs:
        return NONE
    starts, ends = zip(*pairs, strict=True)
    return union(np.concatenate(starts), np.concatenate(ends))


def _add(
    rows: _Rows,
    where: _Steps,
    pair: Pair,
    kind: str,
    name: str,
    lane: str,
    device: int | None = None,
) -> None:
    more = {} if device is None else {"clock": "device", "device": f"cuda:{device}"}
    for place, inside in where.each(pair):
        around = int(inside[1][-1] - inside[0][0]) // _CLOSED_OUTSIDE
        starts, ends = bridge(inside, where.length(place) // _CLOSED if place >= 0 else around)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            rows.add(kind, name, lane, start, end, **where.keys(place), **more)


def _collectives(rows: _Rows, profile: Profile, where: _Steps, busy: Pair) -> None:
    """Add the collectives of the host, numbered alike on all workers, and what they blocked."""
    for place, calls in _by_step(profile.calls, where):
        seen: dict[tuple[str, int | None, int | None], int] = {}
        for call in calls:
            number = (call.op, call.group, call.instance)
            times = seen[number] = seen.get(number, -1) + 1
            group, size = group_name(profile, call.group, rows.owner, call.replicas)
            seq = None if place < 0 else _seq(where.steps[place].number, call, times)
            more = {
                **where.keys(place),
                "collective_op": call.op,
                "collective_group": group,
                "collective_seq": seq,
                "group_size": size or None,
                "peer_rank": rows.owner.rank if call.is_root else None,
            }
            rows.add("comm", call.op, f"group:{group}", call.start_ns, call.end_ns, **more)
            _waits(rows, call, busy, where.length(place) // len(calls), more)


def _seq(step: int, call: Call, times: int) -> int:
    """The number of a call: members of a group know each other by the instance, which a graph may
    use in every step. Without one the order in the step has to do."""
    instance = 0 if call.instance is None else call.instance % _INSTANCES
    if call.instance is None:
        return step * _STEP_SEQ + times
    return step * _STEP_SEQ + instance * _TIMES + times % _TIMES


def _by_step(calls: Sequence[Any], where: _Steps) -> Iterator[tuple[int, list[Any]]]:
    by_place: dict[int, list[Any]] = {}
    places = where.places(np.array([call.start_ns for call in calls], np.int64))
    for call, place in zip(calls, places.tolist(), strict=True):
        by_place.setdefault(place, []).append(call)
    yield from by_place.items()


def _waits(rows: _Rows, call: Call | Kernel, busy: Pair, length: int, more: dict[str, Any]) -> None:
    """Add the time in which a collective went on and nothing was computed."""
    first = int(np.searchsorted(busy[1], call.start_ns, "right"))
    last = int(np.searchsorted(busy[0], call.end_ns, "left"))
    around = busy[0][first:last], busy[1][first:last]
    whole = np.array([call.start_ns], np.int64), np.array([call.end_ns], np.int64)
    starts, ends = bridge(minus(whole, around), length // _CLOSED)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end > start:
            rows.add("comm", "wait", _WAIT, start, end, **more)


def _nccl(rows: _Rows, profile: Profile, where: _Steps, busy: Pair) -> None:
    """Add NCCL's kernels. Those of the first device are numbered by their order in the step: the
    devices of a host take part in the same calls."""
    devices = sorted({stream.device for stream in profile.streams})
    groups = {call.group for call in profile.calls}
    key = groups.pop() if len(groups) == 1 else None
    group, size = group_name(profile, key, rows.owner, len(devices))
    known = size > 1 or key is not None
    for device in devices:
        counted = known and device == devices[0]
        found = [
            (kernel, stream.name)
            for stream in profile.streams
            if stream.device == device
            for kernel in stream.nccl
        ]
        found.sort(key=lambda one: one[0].start_ns)
        lanes = {id(kernel): name for kernel, name in found}
        for place, kernels in _by_step([kernel for kernel, _ in found], where):
            seen: dict[str, int] = {}
            for kernel in kernels:
                times = seen[kernel.op] = seen.get(kernel.op, -1) + 1
                numbered = counted and place >= 0
                more = {
                    **where.keys(place),
                    "clock": "device",
                    "device": f"cuda:{device}",
                    "collective_op": kernel.op,
                    "collective_dtype": kernel.dtype,
                    "collective_group": group if numbered else None,
                    "collective_seq": where.steps[place].number * _STEP_SEQ + times
                    if numbered
                    else None,
                    "group_size": size or None if numbered else None,
                }
                lane = f"stream:{device}:{lanes[id(kernel)]}"
                rows.add("comm", kernel.name, lane, kernel.start_ns, kernel.end_ns, **more)
                _waits(rows, kernel, busy, where.length(place) // len(kernels), more)
