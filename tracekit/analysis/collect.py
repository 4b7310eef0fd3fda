"""From spans to one small row for each rank and step: runs the SQL window by window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis.basis.clocks import put_on_one_clock
from tracekit.analysis.basis.tables import PER_STEP, Floats, Group, Ints, Overview, Tables
from tracekit.analysis.options import Options
from tracekit.analysis.queries import query
from tracekit.analysis.roles.peers import Peers
from tracekit.dataset.engine import Engine
from tracekit.model import DIRECTION_OF_OP, Correction

__all__ = ["collect"]

_SPARSE = 4
"""Numbers of steps may be so many times as many as steps; beyond that they are counted through."""


def collect(
    engine: Engine,
    seen: Overview,
    options: Options,
    absent: int = 0,
    peers: Peers | None = None,
    corrections: Mapping[int, list[Correction]] | None = None,
) -> Tables | None:
    """Run the analysis over all steps; None where there are no steps.

    Of ``absent`` ranks nothing was recorded: what the others waited for them is not known, so
    their waits are the least they can have been. ``corrections`` put ranks on one clock.
    """
    if seen.first_step is None or seen.last_step is None:
        return None
    if peers is None or peers.unknown:
        peers = Peers((seen.ranks,))
    _register(engine, seen, peers)
    put_on_one_clock(engine, corrections or {})
    engine.view("numbered", query("numbered", attempt=seen.attempt))
    pass_ = _Pass(range(seen.first_step, seen.last_step + 1), None, {})
    sparse = len(pass_.steps) > _SPARSE * (seen.steps + _SPARSE)
    if sparse or _repeats(engine):
        pass_ = _count_through(engine, seen)
    tables = _Collector(engine, seen, options, absent, peers, pass_).run()
    if tables is None:  # ranks number their steps differently
        pass_ = replace(pass_, shifts=_shifts(engine, seen))
        tables = _Collector(engine, seen, options, absent, peers, pass_).run()
    return tables


@dataclass(frozen=True, slots=True)
class _Pass:
    """How steps are numbered: which numbers there are, how their owner calls them, and by how
    much ranks differ from it."""

    steps: range
    labels: Ints | None
    shifts: dict[int, int]


def _repeats(engine: Engine) -> bool:
    """Whether ranks use a step's number more than once, as a loop does that counts in epochs."""
    engine.view("timeline", query("timeline", kernels=0))
    engine.keep("steps", query("steps"))
    return bool(engine.sql("SELECT MAX(times) AS times FROM steps")["times"][0].as_py() > 1)


def _count_through(engine: Engine, seen: Overview) -> _Pass:
    """Number the steps of each rank in the order in which it took them."""
    engine.keep("laps", query("laps", attempt=seen.attempt))
    engine.view("numbered", query("renumbered", attempt=seen.attempt))
    rows = engine.sql("SELECT number, MIN(step) AS step FROM laps GROUP BY number")
    numbers = rows["number"].to_numpy()
    labels = np.zeros(int(numbers.max()) + 1, np.int64)
    labels[numbers] = rows["step"].to_numpy()
    return _Pass(range(len(labels)), labels, {})


def _register(engine: Engine, seen: Overview, peers: Peers) -> None:
    directions = {**{op: d.value for op, d in DIRECTION_OF_OP.items()}, "p2p": "pair"}
    engine.register(
        "directions",
        pa.table({"op": [*directions], "direction": [*directions.values()]}),
    )
    number = {rank: place for place, ranks in enumerate(peers.sets) for rank in ranks}
    ranks = pa.array([*number], pa.int32())
    engine.register("peers", pa.table({"rank": ranks, "peers": pa.array([*number.values()])}))
    engine.register("tied", pa.table({"grp": pa.array(peers.tied, pa.string())}))
    engine.register("devices", pa.table({"rank": pa.array(seen.device_ranks, pa.int32())}))


def _shifts(engine: Engine, seen: Overview) -> dict[int, int]:
    """By how many steps each rank is ahead of most: the shift that most of its calls show."""
    rows = engine.sql(query("shifts", attempt=seen.attempt)).to_pylist()
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row["calls"] > found.get(row["rank"], (0, 0))[0]:
            found[row["rank"]] = (row["calls"], row["shift"])
    return {rank: found.get(rank, (0, 0))[1] for rank in seen.ranks}


class _Collector:
    """One pass over the windows of a run."""

    def __init__(
        self,
        engine: Engine,
        seen: Overview,
        options: Options,
        absent: int,
        peers: Peers,
        numbering: _Pass,
    ) -> None:
        self.engine, self.seen, self.options = engine, seen, options
        self.absent, self.peers, self.shifts = absent, peers, numbering.shifts
        low = numbering.steps.start - max([0, *self.shifts.values()])
        high = numbering.steps.stop - 1 - min([0, *self.shifts.values()])
        self.first = low if options.first_step is None else max(low, options.first_step)
        self.last = high if options.last_step is None else min(high, options.last_step)
        count = max(0, self.last - self.first + 1)
        shape = (count, len(seen.ranks))
        self.place = {rank: place for place, rank in enumerate(seen.ranks)}
        self.every = max(1, -(-seen.communications // options.spans_for_totals))
        self.window: dict[str, int] = {}
        steps = np.arange(self.first, self.first + count)
        labels = numbering.labels
        self.tables = Tables(
            steps,
            steps if labels is None else labels[np.clip(steps, 0, len(labels) - 1)],
            seen.ranks,
            {name: np.full(shape, np.nan, np.float32) for name in PER_STEP},
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            None,
            None,
            None,
            None,
            np.full(shape, np.nan, np.float32),
            np.zeros(len(seen.ranks), np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count),
            self.every,
            self.shifts,
        )

    def run(self) -> Tables | None:
        """All windows; None when the first shows that ranks number steps differently."""
        if self.last < self.first:
            return self.tables
        if self.shifts:
            ranks = [*self.seen.ranks]
            table = {
                "rank": pa.array(ranks, pa.int32()),
                "shift": pa.array([self.shifts.get(rank, 0) for rank in ranks], pa.int64()),
            }
            self.engine.register("shifts", pa.table(table))
        self._view("timeline", source="timeline_shifted" if self.shifts else "timeline")
        self._keep("steps")
        self._steps()
        per_step = max(1, self.seen.spans // max(1, len(self.tables.steps)))
        size = max(1, self.options.spans_per_window // per_step)
        stepless = self.seen.stepless_end_ns > int(self.tables.begin_ns[0].max(initial=0))
        self._carry(stepless)
        for first in range(self.first, self.last + 1, size):
            self.window = {"first": first, "last": min(first + size - 1, self.last)}
            if not self._window():
                return None
        return self.tables

    def _keep(self, name: str, source: str = "") -> None:
        self.engine.keep(name, self._text(source or name))

    def _view(self, name: str, source: str = "") -> None:
        self.engine.view(name, self._text(source or name))

    def _carry(self, really: bool) -> None:
        """Find the spans that reach into other steps than their own; costly and mostly none."""
        self._keep("carried", "carried" if really else "nothing_carried")
        self.carried = really

    def _steps(self) -> None:
        rows = self.engine.sql("SELECT rank, step, begin_ns, is_open, is_untraced FROM steps")
        where, _ = self._where(rows)
        self.tables.begin_ns[where] = rows["begin_ns"].to_numpy()[self._inside]
        self.tables.is_open[where] = rows["is_open"].to_numpy()[self._inside] > 0
        self.tables.is_untraced[where] = rows["is_untraced"].to_numpy()[self._inside] > 0

    def _where(self, rows: pa.Table) -> tuple[tuple[Ints, Ints], Ints]:
        """Where rows of (step, rank) belong in the arrays; rows outside are left out."""
        steps = rows["step"].to_numpy().astype(np.int64) - self.first
        ranks = rows["rank"].to_numpy().astype(np.int64)
        table = np.full(max(self.seen.ranks) + 1, -1)
        table[list(self.place)] = list(self.place.values())
        known = (ranks >= 0) & (ranks < len(table))
        places = np.where(known, table[np.clip(ranks, 0, len(table) - 1)], -1)
        low = self.window.get("first", self.first) - self.first
        self._inside = (steps >= low) & (steps < len(self.tables.steps)) & (places >= 0)
        return (steps[self._inside], places[self._inside]), ranks

    def _window(self) -> bool:
        tables = self.tables
        self._view("within")
        self._keep("calls")
        signature = self._sql("signatures")
        if not self.shifts and _disagree(signature):
            return False
        partition = self._partition()
        if not self.carried and np.any(partition["outside"].to_numpy() > 0):
            self._carry(True)
            partition = self._partition()
        where, _ = self._where(partition)
        for name, values in tables.values.items():
            values[where] = partition[name].to_numpy()[self._inside]
        self._signatures(signature)
        self._groups()
        self._meetings()
        return True

    def _partition(self) -> pa.Table:
        """Partition the steps of the window."""
        self._keep("flights")
        self._view("waits")
        self._keep("tiles")
        waits = self.engine.sql("SELECT MAX(is_wait) AS is_wait FROM flights")["is_wait"][0].as_py()
        self.engine.keep("tails", self._text("tails", waits=waits or 0))
        return self._sql("partition")

    def _sql(self, name: str, **more: int) -> pa.Table:
        return self.engine.sql(self._text(name, **more))

    def _text(self, name: str, **more: int) -> str:
        return query(
            name,
            attempt=self.seen.attempt,
            origin=self.seen.first_ns,
            every=self.every,
            absent=self.absent,
            kernels=bool(self.seen.device_ranks),
            **self.window,
            **more,
        )

    def _signatures(self, rows: pa.Table) -> None:
        steps = rows["step"].to_numpy() - self.first
        self.tables.calls[steps] = rows["calls"].to_numpy()
        self.tables.bytes[steps] = rows["bytes"].to_numpy()
        self.tables.incomplete[steps] = rows["incomplete"].to_numpy()

    def _groups(self) -> None:
        for row in self._sql("groups").to_pylist():
            key = (row["grp"], row["op"])
            group = self.tables.groups.get(key)
            if group is None:
                group = Group(row["grp"], row["op"], row["direction"], row["group_size"] or 0)
                self.tables.groups[key] = group
            group.calls += row["calls"]
            group.sent_before |= bool(row["sent_before"])
            group.complete += int(row["complete"])
            group.bytes += row["bytes"] or 0.0
        for row in self._sql("collectives").to_pylist():
            group = self.tables.groups[row["grp"], row["op"]]
            group.timed_steps += row["steps"]
            group.timed_spans += int(row["spans"])
            group.wait += row["wait"]
            group.queue += row["queue"]
            group.transfer += row["transfer"]

    def _meetings(self) -> None:
        tables = self.tables
        self._keep("meetings")
        self._keep("latest")
        rows = self._sql("imposed")
        where, _ = self._where(rows)
        for name, values in (("imposed", tables.imposed), ("inside", tables.inside)):
            np.add.at(values, where, rows[name].to_numpy()[self._inside])
        several = len({group for group, _ in tables.groups}) > 1
        if several or any(g.direction not in ("all", None) for g in tables.groups.values()):
            tables.excess, tables.ahead = self._excess(tables.excess, tables.ahead, units=0)
        if self.peers.units:
            tables.unit_excess, tables.unit_ahead = self._excess(
                tables.unit_excess, tables.unit_ahead, units=1
            )
        rows = self._sql("last_arrivals")
        where, _ = self._where(rows)
        times = rows["times"].to_numpy()[self._inside]
        np.add.at(tables.last, where[1], times)
        np.add.at(tables.meetings, where[0], times)
        rows = self._sql("arrivals")
        where, _ = self._where(rows)
        arrivals = np.full(tables.lateness.shape, np.nan)
        earliest = tables.begin_ns.max(axis=1, initial=0)[where[0]]
        arrivals[where] = rows["start_ns"].to_numpy()[self._inside] - earliest
        steps = np.unique(where[0])
        for ranks in self.peers.sets:
            among = np.ix_(steps, np.array([self.place[rank] for rank in ranks]))
            tables.lateness[among] = _lateness(arrivals[among])

    def _excess(
        self, excess: Floats | None, ahead: Floats | None, units: int
    ) -> tuple[Floats, Floats]:
        """Add what this window tells of own work beside that of the peers."""
        if excess is None or ahead is None:
            excess, ahead = (np.zeros_like(self.tables.imposed) for _ in range(2))
        rows = self._sql("excess", units=units)
        where, _ = self._where(rows)
        excess[where] = rows["excess"].to_numpy()[self._inside]
        ahead[where] = rows["ahead"].to_numpy()[self._inside]
        return excess, ahead


def _disagree(signatures: pa.Table) -> bool:
    """Whether ranks seem to count the same collective to different steps."""
    calls, incomplete = (int(np.sum(signatures[n].to_numpy())) for n in ("calls", "incomplete"))
    return bool(np.any(signatures["shifted"].to_numpy() > 0)) or 2 * incomplete > calls


def _lateness(arrivals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each arrival minus the median of the others in its row; NaN where there are no others."""
    ordered = np.sort(arrivals, axis=1)  # NaN last
    own = np.argsort(np.argsort(arrivals, axis=1), axis=1)
    others = np.sum(~np.isnan(arrivals), axis=1, keepdims=True) - 1
    last = arrivals.shape[1] - 1

    def other(place: Ints) -> npt.NDArray[np.float64]:
        """What stands at this place when the own arrival is left out."""
        there = np.clip(place + (place >= own), 0, last)
        return np.take_along_axis(ordered, there, axis=1)

    median = (other((others - 1) // 2) + other(others // 2)) / 2
    return np.where(others > 0, arrivals - median, np.nan)
