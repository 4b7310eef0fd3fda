"""Big runs are runs like others, only bigger."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tracekit.analysis import analyze
from tracekit.dataset.engine import DuckDB
from tracekit.dataset.schema import SPANS
from tracekit.testing import big_run, write_big_run


def test_a_big_run_has_as_many_spans_as_asked_for_in_order() -> None:
    table = big_run(ranks=4, steps=3, collectives=10, blocking=2)
    assert table.schema == SPANS
    assert table.num_rows == 4 * 3 * (10 + 5)
    rows = table.select(["step", "rank", "start_ns"]).to_pylist()
    keys = [(row["step"], row["rank"], row["start_ns"]) for row in rows]
    assert keys == sorted(keys)


def test_its_slow_rank_is_found(tmp_path: Path) -> None:
    files = write_big_run(tmp_path, steps=60, chunk=25, ranks=6, slow_rank=4, slow_ms=30.0)
    assert len(files) == 3
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in files) == 60 * 6 * 45
    with DuckDB(threads=1) as engine:
        engine.register("spans", files)
        engine.register("facts", [])
        engine.register("events", [])
        (straggler,) = analyze(engine).stragglers
    assert (straggler.rank, straggler.kind, straggler.cause) == (4, "rank", "forward")
