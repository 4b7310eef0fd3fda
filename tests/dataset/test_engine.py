"""The engine: tables in, SQL over them, Arrow out; DuckDB stays behind it."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.dataset.engine import DuckDB
from tracekit.dataset.schema import SPANS
from tracekit.errors import MissingDependency
from tracekit.testing import RunBuilder


@pytest.fixture
def engine() -> Iterator[DuckDB]:
    with DuckDB(threads=1) as engine:
        yield engine


def spans(steps: int, first: int = 0) -> pa.Table:
    run = RunBuilder()
    run.next_step = first
    run.steps(steps)
    return run.tables()["spans"]


def test_files_and_tables_of_one_name_are_one_table(engine: DuckDB, tmp_path: Path) -> None:
    pq.write_table(spans(2), tmp_path / "a'b.parquet")
    pq.write_table(spans(3, 2), tmp_path / "b.parquet")
    engine.register("spans", [tmp_path / "a'b.parquet", tmp_path / "b.parquet", spans(1, 5)])
    found = engine.sql("SELECT COUNT(DISTINCT step) AS steps, COUNT(*) AS n FROM spans")
    assert found.to_pylist() == [{"steps": 6, "n": 6 * len(spans(1))}]


def test_columns_that_an_older_file_lacks_are_null(engine: DuckDB, tmp_path: Path) -> None:
    old = spans(1).drop_columns(["launch_ns", "device", "peer_rank"])
    pq.write_table(old, tmp_path / "old.parquet")
    engine.register("spans", [tmp_path / "old.parquet"])
    found = engine.sql("SELECT launch_ns, peer_rank FROM spans GROUP BY launch_ns, peer_rank")
    assert found.to_pylist() == [{"launch_ns": None, "peer_rank": None}]
    assert engine.sql("SELECT * FROM spans").column_names == SPANS.names


@pytest.mark.parametrize("source", [[], SPANS.empty_table()])
def test_nothing_is_an_empty_table_with_all_columns(engine: DuckDB, source: Any) -> None:
    engine.register("spans", source)
    assert engine.sql("SELECT * FROM spans").num_rows == 0


def test_folder_names_never_become_columns(engine: DuckDB, tmp_path: Path) -> None:
    folder = tmp_path / "attempt=7" / "rank=00003"
    folder.mkdir(parents=True)
    pq.write_table(spans(1), folder / "part.parquet")
    engine.register("spans", [folder / "part.parquet"])
    found = engine.sql("SELECT MAX(attempt) AS attempt, COUNT(DISTINCT rank) AS ranks FROM spans")
    assert found.to_pylist() == [{"attempt": 0, "ranks": 4}]


def test_what_is_kept_stays_when_its_source_goes(engine: DuckDB) -> None:
    engine.register("numbers", pa.table({"n": [1, 2, 3]}))
    engine.keep("sums", "SELECT SUM(n) AS n FROM numbers")
    engine.register("numbers", pa.table({"n": [10]}))
    assert engine.sql("SELECT CAST(n AS BIGINT) AS n FROM sums").to_pylist() == [{"n": 6}]
    engine.keep("sums", "SELECT SUM(n) AS n FROM numbers")
    assert engine.sql("SELECT CAST(n AS BIGINT) AS n FROM sums").to_pylist() == [{"n": 10}]
    engine.drop("sums")
    engine.drop("sums")


def test_functions_have_the_names_that_spark_gives_them(engine: DuckDB) -> None:
    engine.register("numbers", pa.table({"n": [3, 1, 2, 2]}))
    found = engine.sql(
        "SELECT percentile(n, 0.5) AS p, array_sort(collect_set(n)) AS s FROM numbers"
    )
    assert found.to_pylist() == [{"p": 2.0, "s": [1, 2, 3]}]


def test_without_duckdb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "duckdb", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependency, match=r"duckdb is not installed: .*\[analyze\]"):
        DuckDB()


def test_duckdb_is_imported_in_one_module(request: pytest.FixtureRequest) -> None:
    package = request.config.rootpath / "tracekit"
    importing = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "import duckdb" in path.read_text()
    ]
    assert importing == ["dataset/engine.py"]
