"""The parts of a running attempt as they appear: whole steps of a host's ranks, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset import TABLES
from tracekit.dataset.parts import read_footer
from tracekit.dataset.schema import cast
from tracekit.errors import TracekitError

__all__ = ["NewParts", "Outside"]


@dataclass(slots=True)
class _Part:
    path: Path
    rank: int
    first: int
    last: int
    """The steps it has rows of."""
    rows: int
    late_to: int
    """Up to which step others had been taken before it came."""


@dataclass(slots=True)
class _Rank:
    seen: set[str] = field(default_factory=set)
    parts: list[_Part] = field(default_factory=list)
    ended: int = -1
    """The last step whose end was recorded."""
    gone: bool = False


class Outside(NamedTuple):
    """What of a part belongs to no step; the facts are all there are."""

    spans: pa.Table
    events: pa.Table
    facts: pa.Table


class NewParts:
    """What the agent of a host wrote of its ranks and nobody has taken yet.

    ``host`` is the host's eight digits in names of parts, ``ranks`` how many ranks it has.
    """

    def __init__(self, run_dir: Path, attempt: int, host: str, ranks: int) -> None:
        self._folder = f"attempt={attempt}"
        self._run_dir, self._pattern, self._expected = run_dir, f"part-{host}-*.parquet", ranks
        self._ranks: dict[int, _Rank] = {}
        self._taken = -1
        self.unread: list[str] = []
        """What could not be read, with the reason."""

    def look(self) -> list[Outside]:
        """Find new parts; returns what of each belongs to no step."""
        outside = []
        for path in sorted(self._run_dir.glob(f"spans/{self._folder}/rank=*/{self._pattern}")):
            rank = int(path.parent.name.removeprefix("rank="))
            known = self._ranks.setdefault(rank, _Rank())
            if path.name not in known.seen:
                known.seen.add(path.name)
                try:
                    outside.append(self._take(path, rank, known))
                except (TracekitError, OSError, pa.ArrowException) as error:
                    self.unread.append(f"{path}: {error}")
        return outside

    def _take(self, path: Path, rank: int, known: _Rank) -> Outside:
        footer = read_footer(path, "spans")
        known.gone = known.gone or any(held.final is not None for held in footer.held)
        rows = _read(path, "spans")
        steps = rows["step"]
        bounds = pc.min_max(steps).as_py()
        if bounds["min"] is not None:
            known.parts.append(
                _Part(path, rank, bounds["min"], bounds["max"], len(rows), self._taken)
            )
            ended = pc.and_(pc.equal(rows["kind"], "step"), pc.invert(rows["is_open"]))
            last = pc.max(steps.filter(ended)).as_py()
            known.ended = max(known.ended, -1 if last is None else last)
        events, facts = (_read_beside(path, table) for table in ("events", "facts"))
        spans, events = (table.filter(pc.is_null(table["step"])) for table in (rows, events))
        return Outside(spans, events, facts)

    @property
    def newest(self) -> int:
        """The last step that any rank has ended."""
        return max((known.ended for known in self._ranks.values()), default=-1)

    @property
    def complete(self) -> int:
        """The last step that all ranks have ended, or will not."""
        if len(self._ranks) < self._expected:
            return -1
        open_ = [known.ended for known in self._ranks.values() if not known.gone]
        return min(open_, default=self._last)

    @property
    def _last(self) -> int:
        return max(
            (part.last for known in self._ranks.values() for part in known.parts), default=-1
        )

    def steps(self, through: int | None) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """Take the steps up to one, None: all there are: number, spans by rank, events."""
        last = self._last if through is None else through
        while self._taken < last:
            ahead = self._ahead()
            following = min((max(part.first, self._taken + 1) for part in ahead), default=last + 1)
            if following > last:
                self._taken = max(self._taken, last)
                break
            yield from self._some(following, min(last, following + _at_once(ahead) - 1), ahead)
        for known in self._ranks.values():
            known.parts = [p for p in known.parts if p.last > self._taken or p.first <= p.late_to]

    def late(self) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """Take what came after its step was taken: of a rank that others did not wait for."""
        for part in [part for known in self._ranks.values() for part in known.parts]:
            last, part.late_to = min(part.late_to, part.last), -1
            if part.first <= last:
                yield from _read_steps([part], part.first, last)

    def _ahead(self) -> list[_Part]:
        return [p for k in self._ranks.values() for p in k.parts if p.last > self._taken]

    def _some(
        self, first: int, last: int, ahead: list[_Part]
    ) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """The steps of a range, read at once: a part holds many."""
        here = [part for part in ahead if part.first <= last and part.last >= first]
        for step in _read_steps(here, first, last):
            self._taken = step[0]
            yield step
        self._taken = last

    def tallies(self) -> Iterator[tuple[int, int, int, set[str]]]:
        """Take all that there are without looking into them: step, how many spans, how long the
        longest of kind step is, and whether one is of kind checkpoint."""
        columns = ["step", "kind", "duration_ns"]
        found: dict[int, tuple[int, int, bool]] = {}
        for part in self._ahead():
            rows = _read(part.path, "spans", columns)
            for step, kind, duration in zip(*(rows[c].to_pylist() for c in columns), strict=True):
                if step is not None and step > self._taken:
                    count, longest, saves = found.get(step, (0, 0, False))
                    longest = max(longest, duration) if kind == "step" else longest
                    found[step] = count + 1, longest, saves or kind == "checkpoint"
        for step, (count, longest, saves) in sorted(found.items()):
            self._taken = step
            yield step, count, longest, {"checkpoint"} if saves else set()


def _read_steps(
    parts: list[_Part], first: int, last: int
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    order = [("step", "ascending"), ("rank", "ascending")]
    spans = _rows(parts, "spans", first, last).sort_by([*order, ("start_ns", "ascending")])
    events = _rows(parts, "events", first, last).sort_by([*order, ("time_ns", "ascending")])
    told = dict(_by_step(events))
    for number, rows in _by_step(spans):
        yield number, rows, told.get(number, events.slice(0, 0))


def _at_once(ahead: list[_Part]) -> int:
    """How many steps to read at once, so that a part is not read again and again."""
    rows = sum(part.rows for part in ahead)
    steps = max(part.last for part in ahead) - min(part.first for part in ahead) + 1
    return max(_ROWS_AT_ONCE * steps // max(rows, 1), _LEAST_AT_ONCE)


def _by_step(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each step; they are sorted by it."""
    steps = rows["step"].to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for low, high in pairwise(bounds):
        if low < high:
            yield int(steps[low]), rows.slice(low, high - low)


_ROWS_AT_ONCE = 1 << 16
_LEAST_AT_ONCE = 8


def _rows(parts: list[_Part], table: str, first: int, last: int) -> pa.Table:
    found = [TABLES[table].empty_table()]
    for part in parts:
        rows = _read_beside(part.path, table)
        inside = pc.and_(pc.greater_equal(rows["step"], first), pc.less_equal(rows["step"], last))
        found.append(rows.filter(inside))
    return pa.concat_tables(found).unify_dictionaries().combine_chunks()


def _read_beside(path: Path, table: str) -> pa.Table:
    """The rows of a table that were written together with a part of spans."""
    rank, attempt, _, run_dir = path.parents[:4]
    try:
        return _read(run_dir / table / attempt.name / rank.name / path.name, table)
    except FileNotFoundError:
        return TABLES[table].empty_table()


def _read(path: Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    schema = TABLES[table]
    if columns is not None:
        schema = pa.schema([schema.field(column) for column in columns])
    with pq.ParquetFile(path) as file:
        names = set(file.schema_arrow.names)
        there = [name for name in schema.names if name in names]
        return cast(file.read(columns=there), schema)
