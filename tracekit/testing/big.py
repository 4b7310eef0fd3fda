"""Large synthetic runs, made by arrays: what benchmarks of the analysis read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.dataset.schema import SPANS
from tracekit.model import group_id

__all__ = ["big_run", "write_big_run"]

_EPOCH = 1_700_000_000_000_000_000
_STEP_NS = 100_000_000
_PHASES = ("step", "data", "forward", "backward", "optimizer")
_NAMES = ("train_step", "data_wait", "forward", "backward", "optimizer_step")
_THREAD, _GROUP = 0, 1
_TEXTS = [field.name for field in SPANS if pa.types.is_dictionary(field.type)]
_DELTAS = ["rank", "step", "span_id", "parent_id", "start_ns", "duration_ns", "collective_seq"]

Numbers = npt.NDArray[np.int64]


def big_run(
    ranks: int = 64,
    steps: int = 1000,
    collectives: int = 40,
    *,
    blocking: int = 8,
    slow_rank: int | None = None,
    slow_ms: float = 0.0,
    first_step: int = 0,
    seed: int = 0,
) -> pa.Table:
    """The spans of a run, sorted by step, rank and start as compaction leaves them.

    Of a step's ``collectives``, ``blocking`` ones are all-gathers in the forward; the others are
    buckets that are reduced in the background of the backward. ``slow_rank`` needs ``slow_ms``
    more for every forward.
    """
    rng = np.random.default_rng(seed + first_step)
    rows, buckets = ranks * steps, collectives - blocking
    rank = np.tile(np.arange(ranks), steps)
    step = np.repeat(np.arange(first_step, first_step + steps), ranks)
    kinds = len(_PHASES) + collectives
    start = np.empty((rows, kinds), np.int64)
    end = np.empty((rows, kinds), np.int64)

    def noise(low: float, high: float) -> Numbers:
        return rng.integers(int(low * 1e6), int(high * 1e6), rows)

    def last(arrivals: Numbers) -> Numbers:
        """The last arrival of each step, for each of its ranks."""
        return np.repeat(arrivals.reshape(steps, ranks).max(1), ranks)

    start[:, 0] = _EPOCH + step * _STEP_NS + (rank * 7_919) % 50_000
    end[:, 0] = start[:, 0] + _STEP_NS
    start[:, 1] = start[:, 0] + 1_000
    end[:, 1] = start[:, 1] + noise(1, 3)
    start[:, 2] = now = end[:, 1] + 2_000
    for i in range(blocking):
        arrival = now + noise(2.4, 2.6) + (rank == slow_rank) * int(slow_ms * 1e6 / blocking)
        start[:, 5 + i] = arrival
        end[:, 5 + i] = now = last(arrival) + 100_000
    end[:, 2] = now = now + noise(4, 5)
    start[:, 3] = now = now + 3_000
    work = noise(38, 40)
    done = np.zeros(rows, np.int64)
    for i in range(buckets):
        start[:, 5 + blocking + i] = arrival = now + work * (i + 1) // buckets
        end[:, 5 + blocking + i] = done = np.maximum(last(arrival), done) + 400_000
    end[:, 3] = np.maximum(done, now + work) + 20_000
    start[:, 4] = end[:, 3] + 30_000
    end[:, 4] = start[:, 4] + 5_000_000
    order = np.argsort(start, axis=1, kind="stable")
    column = _Columns(order, rows)

    is_comm = column.of([0] * 5 + [1] * collectives) == 1
    names = column.of([*range(5), *[5] * blocking, *[6] * buckets])
    ids = column.of(range(kinds)) + np.repeat((step + 1) * kinds, kinds)
    parents = np.repeat((step + 1) * kinds, kinds) + column.of(
        [0] * 5 + [2] * blocking + [3] * buckets
    )
    per_step = column.of([0] * 5 + [blocking] * blocking + [buckets] * buckets)
    seq = column.of([0] * 5 + [*range(blocking), *range(buckets)])
    seq = seq + per_step * np.repeat(step, kinds)
    group = group_id(range(ranks))
    nothing = pa.nulls(rows * kinds)
    columns: dict[str, Any] = {
        "run_id": column.text([0] * kinds, ["big"]),
        "attempt": np.zeros(rows * kinds, np.int32),
        "rank": np.repeat(rank, kinds).astype(np.int32),
        "step": np.repeat(step, kinds),
        "kind": column.text([*range(5), *[5] * collectives], [*_PHASES, "comm"]),
        "name": _coded(names, [*_NAMES, "all_gather", "all_reduce"]),
        "lane": column.text(
            [_THREAD] * (5 + blocking) + [_GROUP] * buckets,
            ["thread:MainThread", f"group:{group}"],
        ),
        "clock": column.text([0] * kinds, ["host"]),
        "span_id": ids,
        "parent_id": pa.array(parents, mask=~is_comm),
        "start_ns": np.take_along_axis(start, order, 1).ravel(),
        "duration_ns": np.take_along_axis(end - start, order, 1).ravel(),
        "is_open": np.zeros(rows * kinds, np.bool_),
        "status": column.text([0] * kinds, ["ok"]),
        "collective_op": _coded(names - 5, ["all_gather", "all_reduce"], ~is_comm),
        "collective_group": _coded(names * 0, [group], ~is_comm),
        "collective_seq": pa.array(seq, mask=~is_comm),
        "collective_bytes": pa.array(np.full(rows * kinds, 4 << 20), mask=~is_comm),
        "collective_dtype": _coded(names * 0, ["float32"], ~is_comm),
        "group_size": pa.array(np.full(rows * kinds, ranks, np.int32), mask=~is_comm),
    }
    return pa.table(
        [pa.array(columns[f.name]) if f.name in columns else nothing for f in SPANS],
        names=SPANS.names,
    ).cast(SPANS)


class _Columns:
    """Columns that depend on the place of a span in its step alone."""

    def __init__(self, order: Numbers, rows: int) -> None:
        self._order, self._rows = order, rows

    def of(self, values: Sequence[int]) -> Numbers:
        wide = np.broadcast_to(np.array(values, np.int64), self._order.shape)
        return np.take_along_axis(wide, self._order, 1).ravel()

    def text(self, codes: Sequence[int], texts: list[str]) -> pa.Array:
        return _coded(self.of(codes), texts)


def _coded(codes: Numbers, texts: list[str], mask: Any = None) -> pa.Array:
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts))


def write_big_run(folder: Path, steps: int = 1000, chunk: int = 500, **options: Any) -> list[Path]:
    """Write a big run to Parquet files of ``chunk`` steps each, in constant memory."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for first in range(0, steps, chunk):
        table = big_run(steps=min(chunk, steps - first), first_step=first, **options)
        files.append(folder / f"compact-{first:06d}.parquet")
        pq.write_table(
            table,
            files[-1],
            compression="zstd",
            compression_level=1,
            row_group_size=1 << 17,
            use_dictionary=_TEXTS,
            column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        )
    return files
