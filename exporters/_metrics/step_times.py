"""Where the time of a step went, rank by rank: each instant has one class, as in the reports.

The definitions are those of ``docs/numbers.md``, looked at step by step as they come: a span
counts for the step that it was recorded in and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.exporters._arrows import Calls
from tracekit.exporters._otel.waits import waits
from tracekit.exporters._values import values
from tracekit.model import CLASSES, DIRECTION_OF_OP, Direction

__all__ = ["StepTimes", "step_times"]

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_FOR_CALLS = (
    "rank", "step", "start_ns", "kind", "name", "collective_op", "collective_group",
    "collective_seq", "group_size", "peer_rank",
)  # fmt: skip
_STEP, _PHASE, _KERNEL, _COMM, _REST = range(5)
_KINDS = {
    "step": _STEP,
    **dict.fromkeys(("forward", "backward", "optimizer"), _PHASE),
    "kernel": _KERNEL,
    "comm": _COMM,
    "data": _REST,
    "transfer": _REST,
    "checkpoint": _REST + 1,
    "eval": _REST + 2,
    "compile": _REST + 3,
    "gc": _REST + 4,
}
_COMPUTE, _EXPOSED, _OTHER = 0, 1, len(CLASSES) - 1
_FIRST_REST = CLASSES.index("data")
_RESTS = _OTHER - _FIRST_REST
_WORK, _BLOCKED, _INTERRUPTED, _ANY_COMM, _WAIT, _ON_DEVICE, _FAMILY_OF_REST = range(7)
"""Families of intervals; what is neither work nor communication has one for each of its kinds."""
_FAMILIES = _FAMILY_OF_REST + _RESTS
_LONGEST = np.iinfo(np.int64).max


class StepTimes(NamedTuple):
    """One rank in one step, nanoseconds."""

    wall: int
    classes: tuple[int, ...] | None
    """In the order of ``CLASSES``, their sum is the step; None where nothing was recorded."""
    wait: int | None
    """Exposed time in which others were waited for; None where that is not known."""
    trained: bool
    """Whether there is more in it than the time itself."""


class _Rows(NamedTuple):
    """Spans as numbers; ``place`` is that of the rank, times begin with the rank's step."""

    place: Ints
    kind: Ints
    start: Ints
    end: Ints
    lane: Ints


def step_times(rows: pa.Table, domain: Callable[[int], str]) -> dict[int, StepTimes]:
    """The ranks that ended the step; ``rows`` are the spans of all ranks of a host in it.

    ``domain`` names the clock of a rank: between two clocks no wait is known.
    """
    kind_code, kinds = _codes(rows["kind"])
    kind = np.array([_KINDS.get(name or "", -1) for name in kinds] + [-1])[kind_code]
    ranks = rows["rank"].to_numpy()
    raw = rows["start_ns"].to_numpy()
    ends = raw + np.clip(rows["duration_ns"].to_numpy(), 0, _LONGEST - np.maximum(raw, 0))
    is_step = kind == _STEP
    known, begin, length = _bounds(ranks, raw, ends, is_step)
    if not len(known):
        return {}
    place = np.searchsorted(known, ranks)
    place[place == len(known)] = 0
    mine = (known[place] == ranks) & (kind >= 0)
    ended = np.ones(len(known), np.bool_)
    ended[place[mine & is_step & rows["is_open"].to_numpy()]] = False
    pick = np.flatnonzero(mine & ~is_step)
    lane, lanes = _codes(rows["lane"])
    some = _Rows(place[pick], kind[pick], raw[pick], ends[pick], lane[pick])
    name, names = _codes(rows["name"])
    untraced = np.zeros(len(known), np.bool_)
    if "untraced_step" in names:
        untraced[place[mine & is_step & (name == names.index("untraced_step"))]] = True
    comm = np.flatnonzero(mine & (kind == _COMM))
    waiting, unknown = _waits_of(rows.select(_FOR_CALLS).take(comm), raw[comm], ends[comm], domain)
    tails = _tails(rows, comm, mine & (kind == _PHASE), lanes, lane, raw, ends)
    sweep = _Sweep(begin, length)
    sweep.add_phases(some, lanes)
    sweep.add(_WAIT, place[comm], raw[comm], raw[comm] + waiting)
    for family in (_BLOCKED, _ANY_COMM):
        sweep.add(family, place[tails[0]], tails[1], ends[tails[0]])
    classes, wait = sweep.result()
    blind = np.zeros(len(known), np.bool_)
    blind[place[comm[unknown]]] = True
    trained = np.zeros(len(known), np.bool_)
    trained[some.place[some.kind < _REST]] = True
    return {
        rank: StepTimes(
            int(length[i]),
            None if untraced[i] else tuple(classes[i].tolist()),
            None if untraced[i] or blind[i] else int(wait[i]),
            bool(trained[i] or untraced[i]),
        )
        for i, rank in enumerate(known.tolist())
        if ended[i]
    }


def _codes(column: pa.ChunkedArray) -> tuple[Ints, list[str | None]]:
    """A column of words as places in a list of words; -1 where it has none."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # so older versions return it
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    words = array.dictionary.cast(pa.binary()).to_pylist()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [None if word is None else word.decode("utf-8", "replace") for word in words]


def _bounds(ranks: Ints, starts: Ints, ends: Ints, is_step: Flags) -> tuple[Ints, Ints, Ints]:
    """The ranks that have the step, when it began and how long it took."""
    known, inverse = np.unique(ranks[is_step], return_inverse=True)
    begin = np.full(len(known), _LONGEST)
    end = np.zeros(len(known), np.int64)
    np.minimum.at(begin, inverse, starts[is_step])
    np.maximum.at(end, inverse, ends[is_step])
    return known, begin, end - begin


def _waits_of(
    comm: pa.Table, starts: Ints, ends: Ints, domain: Callable[[int], str]
) -> tuple[Ints, Flags]:
    """How long each call waited from its start, and for which that cannot be known.

    Not known is who waits for somebody whose arrival is not here, or is on another clock.
    """
    wait, unknown = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.bool_)
    if not len(starts):
        return wait, unknown
    columns = {name: values(comm[name]) for name in _FOR_CALLS}
    domains = {rank: domain(rank) for rank in set(columns["rank"])}
    timed = np.zeros(len(starts), np.bool_)
    for one in waits(Calls(columns, ends, domains)):
        wait[one.row], timed[one.row] = one.wait_ns, True
    ops, roots, names = (columns[name] for name in ("collective_op", "peer_rank", "name"))
    for row in np.flatnonzero(~timed).tolist():
        is_root = roots[row] == columns["rank"][row]
        alone = columns["group_size"][row] == 1 or names[row] == "wait"
        unknown[row] = not alone and _may_wait(ops[row], is_root)
    return wait, unknown


def _may_wait(op: str | None, is_root: bool) -> bool:
    """Whether this member of a call waits for somebody."""
    direction = DIRECTION_OF_OP.get(op or "", Direction.UNKNOWN)
    return (
        direction is Direction.ALL
        or (direction is Direction.FROM_ROOT and not is_root)
        or (direction is Direction.TO_ROOT and is_root)
        or op == "recv"
    )


def _tails(
    rows: pa.Table, comm: Ints, phases: Flags, lanes: list[str | None], lane: Ints,
    starts: Ints, ends: Ints,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Backwards that send in the background: their rows, and when the last bucket was ready.

    Calls that a thread waited for by itself have spans named wait, and make no tail.
    """
    beside = np.array([_beside(name) for name in lanes] + [False])
    quiet = comm[beside[lane[comm]]]
    nothing = np.zeros(0, np.int64)
    if not len(quiet) or not phases.any():
        return nothing, nothing
    parents = rows["parent_id"].fill_null(-1).to_numpy()
    ids, ranks = rows["span_id"].to_numpy(), rows["rank"].to_numpy()
    kinds, words = _codes(rows["kind"])
    if "backward" not in words:
        return nothing, nothing
    backwards = np.flatnonzero(phases & (kinds == words.index("backward")))
    waited = _waited_for(rows, comm)
    place = {
        (rank, id_): row
        for row, rank, id_ in zip(
            backwards.tolist(), ranks[backwards].tolist(), ids[backwards].tolist(), strict=True
        )
    }
    ready: dict[int, int] = {}
    for row, rank, parent, start in zip(
        quiet.tolist(), ranks[quiet].tolist(), parents[quiet].tolist(), starts[quiet].tolist(),
        strict=True,
    ):  # fmt: skip
        of = place.get((rank, parent))
        if of is not None and row not in waited:
            ready[of] = max(start, ready.get(of, start))
    found = [(row, start) for row, start in ready.items() if start < ends[row]]
    return np.array([r for r, _ in found], np.int64), np.array([s for _, s in found], np.int64)


def _beside(lane: str | None) -> bool:
    return (lane or "").startswith("group:")


def _waited_for(rows: pa.Table, comm: Ints) -> set[int]:
    """Rows of calls for which there is a span named wait."""
    name, names = _codes(rows["name"])
    if "wait" not in names or not (is_wait := name[comm] == names.index("wait")).any():
        return set()
    some = rows.take(comm)
    columns = ("rank", "collective_group", "collective_seq", "collective_op")
    keys = list(zip(*(values(some[column]) for column in columns), strict=True))
    waited = {key for key, wait in zip(keys, is_wait.tolist(), strict=True) if wait}
    return {
        row
        for row, key, wait in zip(comm.tolist(), keys, is_wait.tolist(), strict=True)
        if not wait and key in waited
    }


class _Sweep:
    """Goes once along the steps of all ranks, laid end to end."""

    def __init__(self, begin: Ints, length: Ints) -> None:
        self._begin, self._length = begin, np.maximum(length, 0)
        self._offset = np.concatenate(([0], np.cumsum(self._length)))
        self._starts: list[Ints] = []
        self._ends: list[Ints] = []
        self._families: list[Ints] = []

    def add(self, family: int | Ints, place: Ints, start: Ints, end: Ints) -> None:
        """Intervals of ranks; what lies outside of the rank's step is cut off."""
        low, high = self._begin[place], self._length[place]
        self._starts.append(self._offset[place] + np.clip(start - low, 0, high))
        self._ends.append(self._offset[place] + np.clip(end - low, 0, high))
        self._families.append(np.broadcast_to(np.asarray(family, np.int64), place.shape))

    def add_phases(self, rows: _Rows, lanes: list[str | None]) -> None:
        """Phases, communication, and what is neither."""
        kernels = rows.kind == _KERNEL
        has_kernels = np.zeros(len(self._begin), np.bool_)
        has_kernels[rows.place[kernels]] = True
        phases, comm, rest = rows.kind == _PHASE, rows.kind == _COMM, rows.kind >= _REST
        # With a device timeline only kernels compute, whatever threads do meanwhile.
        self._take(_ON_DEVICE, rows, kernels)
        self._take(_WORK, rows, phases & ~has_kernels[rows.place])
        self._take(_ANY_COMM, rows, comm)
        any_kernels = bool(kernels.any())
        beside = [_beside(n) or (any_kernels and (n or "").startswith("stream:")) for n in lanes]
        self._take(_BLOCKED, rows, comm & ~np.array([*beside, False])[rows.lane])
        chosen = np.flatnonzero(rest)
        self._take(_FAMILY_OF_REST + rows.kind[chosen] - _REST, rows, chosen)
        self._take(_INTERRUPTED, rows, chosen[_inside(rows, chosen, np.flatnonzero(phases))])

    def _take(self, family: int | Ints, rows: _Rows, which: Flags | Ints) -> None:
        self.add(family, rows.place[which], rows.start[which], rows.end[which])

    def result(self) -> tuple[Ints, Ints]:
        """Nanoseconds of each class, ranks down, and of exposed waiting."""
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        family = np.concatenate(self._families)
        edges = np.unique(np.concatenate((starts, ends, self._offset)))
        size = len(edges)
        opened = np.bincount(family * size + np.searchsorted(edges, starts), None, _FAMILIES * size)
        closed = np.bincount(family * size + np.searchsorted(edges, ends), None, _FAMILIES * size)
        there = (opened - closed).reshape(_FAMILIES, size)[:, :-1].cumsum(axis=1) > 0
        classes = np.full(size - 1, _OTHER)
        for rest in reversed(range(_RESTS)):
            classes[there[_FAMILY_OF_REST + rest]] = _FIRST_REST + rest
        classes[there[_ANY_COMM]] = _EXPOSED
        classes[there[_WORK] & ~there[_INTERRUPTED] & ~there[_BLOCKED]] = _COMPUTE
        classes[there[_ON_DEVICE]] = _COMPUTE
        lengths = np.diff(edges)
        ranks = len(self._length)
        place = np.searchsorted(self._offset, edges[:-1], "right") - 1
        # As floats these sums are exact up to 104 days.
        found = np.bincount(place * len(CLASSES) + classes, lengths, ranks * len(CLASSES))
        waiting = (classes == _EXPOSED) & there[_WAIT]
        wait = np.bincount(place[waiting], lengths[waiting], ranks)
        return found.reshape(ranks, len(CLASSES)).astype(np.int64), wait.astype(np.int64)


def _inside(rows: _Rows, some: Ints, phases: Ints) -> Flags:
    """Which rows lie inside of a phase on their own lane."""
    if not len(some) or not len(phases):
        return np.zeros(len(some), np.bool_)
    inner = rows.place[some], rows.lane[some], rows.start[some], rows.end[some]
    outer = rows.place[phases], rows.lane[phases], rows.start[phases], rows.end[phases]
    same = (inner[0][:, None] == outer[0]) & (inner[1][:, None] == outer[1])
    found: Flags = (same & (outer[2] <= inner[2][:, None]) & (outer[3] >= inner[3][:, None])).any(1)
    return found
