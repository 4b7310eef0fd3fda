"""Which records of a run are shown: counted first, so that what is read fits into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.dataset import TABLES, Run
from tracekit.dataset.schema import cast
from tracekit.errors import UsageError
from tracekit.model import Correction

__all__ = ["Choice", "Records", "read_records"]

_ROWS = 1 << 16
_UNUSED = {"spans": {"run_id"}, "events": {"run_id"}}


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a run is shown."""

    first_step: int | None = None
    """The first step; None: from the beginning."""
    last_step: int | None = None
    """The last step; None: to the end."""
    max_spans: int = 1_000_000
    """More spans and events than this are refused: no viewer opens them."""
    min_wait_ns: int = 100_000
    """Waits shorter than this get no arrow."""
    max_arrows: int = 20_000
    """Of more waits than this only the longest get an arrow."""
    corrections: Mapping[int, Sequence[Correction]] = field(default_factory=dict)
    """What puts each rank's times on one clock; empty where they are on one, or nobody knows."""

    @property
    def whole(self) -> bool:
        """Whether what belongs to no step is shown too."""
        return self.first_step is None and self.last_step is None

    def holds(self, step: int | None) -> bool:
        """Whether the records of a step are shown."""
        if step is None:
            return self.whole
        after = self.first_step is None or step >= self.first_step
        return after and (self.last_step is None or step <= self.last_step)


@dataclass(frozen=True, slots=True)
class Records:
    """The chosen spans and events of the last attempt, and its facts."""

    attempt: int
    spans: pa.Table
    events: pa.Table
    facts: pa.Table


def read_records(run: Run, choice: Choice) -> Records:
    """Read what is to be shown.

    Raises ``UsageError`` where that is more than ``max_spans``, or where no such step exists.
    """
    attempt = run.attempts[-1].number if run.attempts else 0
    counts = _counts(run, attempt, "spans")
    _check_steps(run, choice, counts)
    counts.update(_counts(run, attempt, "events"))
    _check_size(run, choice, counts)
    facts = run.table("facts")
    return Records(
        attempt,
        _chosen(run, attempt, choice, "spans"),
        _chosen(run, attempt, choice, "events"),
        facts.filter(pc.equal(facts["attempt"], attempt)),
    )


def _batches(run: Run, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a table, a piece at a time."""
    schema = pa.schema([TABLES[table].field(column) for column in columns])
    for source in run.sources[table]:
        if isinstance(source, Path):
            with pq.ParquetFile(source) as file:
                names = set(file.schema_arrow.names)
                there = [name for name in columns if name in names]
                for batch in file.iter_batches(_ROWS, columns=there):
                    yield cast(pa.Table.from_batches([batch]), schema)
        else:
            there = [name for name in columns if name in source.schema.names]
            yield cast(source.select(there), schema)


def _counts(run: Run, attempt: int, table: str) -> Counter[int | None]:
    """How many rows each step has."""
    counts: Counter[int | None] = Counter()
    for rows in _batches(run, table, ["attempt", "step"]):
        steps = rows["step"].filter(pc.equal(rows["attempt"], attempt))
        found = steps.value_counts()
        steps_found, times = found.field("values").to_pylist(), found.field("counts").to_pylist()
        for step, count in zip(steps_found, times, strict=True):
            counts[step] += count
    return counts


def _check_steps(run: Run, choice: Choice, counts: Counter[int | None]) -> None:
    if choice.whole or any(map(choice.holds, counts)):
        return
    steps = [step for step in counts if step is not None]
    there = f"the run has steps {min(steps)}:{max(steps)}" if steps else "the run has no steps"
    first = "" if choice.first_step is None else choice.first_step
    last = "" if choice.last_step is None else choice.last_step
    raise UsageError(f"{run.path}: nothing in --steps {first}:{last}; {there}")


def _check_size(run: Run, choice: Choice, counts: Counter[int | None]) -> None:
    chosen = {step: count for step, count in counts.items() if choice.holds(step)}
    total = sum(chosen.values())
    if total <= choice.max_spans:
        return
    steps = sorted(step for step in chosen if step is not None)
    sizes = [chosen[step] for step in steps]
    first = _fitting(sizes, choice.max_spans)
    last = _fitting(sizes[::-1], choice.max_spans)
    if first or last:
        options = [f"--steps {steps[0]}:{steps[first - 1]}"] if first else []
        options += [f"--steps {steps[-last]}:{steps[-1]}"] if last else []
        hint = f"these steps fit: {' or '.join(options)}"
    elif steps:
        hint = f"no step at either end fits, step {steps[0]} alone has {sizes[0]:,}"
    else:
        hint = "they belong to no step that could be chosen"
    raise UsageError(
        f"{run.path}: {total:,} spans and events are more than --max-spans {choice.max_spans:,};"
        f" {hint}"
    )


def _corrected(rows: pa.Table, corrections: Mapping[int, Sequence[Correction]]) -> pa.Table:
    """Rows with the times of their ranks put on one clock."""
    if not corrections or not len(rows):
        return rows
    ranks = rows["rank"].to_numpy()
    for column in ("start_ns", "time_ns", "launch_ns"):
        place = rows.schema.get_field_index(column)
        if place < 0:
            continue
        times = rows[column].fill_null(0).to_numpy().copy()
        own = times.copy()
        for rank in np.unique(ranks).tolist():
            for one in corrections.get(rank, ()):
                here = (ranks == rank) & (own >= one.from_ns) & (own < one.until_ns)
                drifted = np.floor(one.drift * (own[here] - one.base_ns)).astype(np.int64)
                times[here] += one.offset_ns + drifted
        missing = rows[column].is_null().to_numpy() if rows[column].null_count else None
        rows = rows.set_column(place, rows.schema.field(place), pa.array(times, mask=missing))
    return rows


def _fitting(sizes: Sequence[int], room: int) -> int:
    """How many of these, from the first on, fit together."""
    return sum(total <= room for total in accumulate(sizes))


def _chosen(run: Run, attempt: int, choice: Choice, table: str) -> pa.Table:
    columns = [name for name in TABLES[table].names if name not in _UNUSED[table]]
    schema = pa.schema([TABLES[table].field(name) for name in columns])
    parts = [schema.empty_table()]
    for rows in _batches(run, table, columns):
        mask = pc.equal(rows["attempt"], attempt)
        if choice.first_step is not None:
            mask = pc.and_(mask, pc.greater_equal(rows["step"], choice.first_step))
        if choice.last_step is not None:
            mask = pc.and_(mask, pc.less_equal(rows["step"], choice.last_step))
        parts.append(_corrected(rows.filter(mask), choice.corrections))
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()
