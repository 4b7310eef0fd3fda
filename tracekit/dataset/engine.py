"""Engines that answer SQL over the tables of a run: DuckDB inside this process, others outside.

The analysis is one SQL text in a subset that DuckDB and Spark read alike. An engine only takes
tables in, keeps results under a name, and gives Arrow tables out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tracekit.dataset.schema import TABLES
from tracekit.errors import MissingDependency

__all__ = ["DuckDB", "Engine", "Source"]

Source: TypeAlias = pa.Table | str | Path | Sequence[pa.Table | str | Path]
"""A table: in memory, a Parquet file, or any number of both whose rows belong together."""


class Engine(Protocol):
    """What the analysis needs of a SQL engine."""

    def register(self, name: str, source: Source) -> None:
        """Make a table known; a second one of that name replaces the first."""
        ...

    def view(self, name: str, text: str) -> None:
        """Give a query a name without running it."""
        ...

    def keep(self, name: str, text: str) -> None:
        """Run a query and keep its result under a name."""
        ...

    def sql(self, text: str) -> pa.Table:
        """Run a query and return its result."""
        ...

    def drop(self, name: str) -> None:
        """Forget what ``keep`` kept."""
        ...


_MACROS = (
    "percentile(x, q) AS quantile_cont(x, q)",
    "approx_percentile(x, q) AS approx_quantile(x, q)",
    "collect_set(x) AS list(DISTINCT x)",
    "array_sort(x) AS list_sort(x)",
)
"""Functions that Spark has under other names than DuckDB."""


class DuckDB:
    """DuckDB, embedded: nothing to install beside it, nothing to start."""

    def __init__(self, threads: int | None = None, memory_limit: str = "1GB") -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingDependency("duckdb", "analyze") from error
        self._connection: Any = duckdb.connect(":memory:")
        self._set("threads", threads or _usable_cores())
        self._set("memory_limit", f"'{memory_limit}'")
        self._set("preserve_insertion_order", "false")
        self._set("TimeZone", "'UTC'")
        for macro in _MACROS:
            self._connection.execute(f"CREATE OR REPLACE TEMP MACRO {macro}")

    def _set(self, option: str, value: object) -> None:
        self._connection.execute(f"SET {option} = {value}")

    def register(self, name: str, source: Source) -> None:
        """Make a table known; columns that a file of a run's tables lacks are NULL."""
        parts: Sequence[pa.Table | str | Path]
        parts = [source] if isinstance(source, (pa.Table, str, Path)) else source
        tables = [part for part in parts if isinstance(part, pa.Table)]
        files = [str(part) for part in parts if not isinstance(part, pa.Table)]
        if name in TABLES:
            tables.append(TABLES[name].empty_table())  # all columns in their types, no rows
        selects = []
        for number, table in enumerate(tables):
            self._connection.register(f"{name}__{number}", table)
            selects.append(f"SELECT * FROM {name}__{number}")
        if files:
            listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
            selects.append(
                f"SELECT * FROM read_parquet([{listed}],"
                " union_by_name = true, hive_partitioning = false)"
            )
        self.view(name, " UNION ALL BY NAME ".join(selects))

    def view(self, name: str, text: str) -> None:
        """Give a query a name without running it."""
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {text}")

    def keep(self, name: str, text: str) -> None:
        """Run a query and keep its result under a name."""
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {text}")

    def sql(self, text: str) -> pa.Table:
        """Run a query and return its result."""
        return self._connection.sql(text).to_arrow_table()

    def drop(self, name: str) -> None:
        """Forget what ``keep`` kept."""
        self._connection.execute(f"DROP TABLE IF EXISTS {name}")

    def close(self) -> None:
        """Free what the engine holds."""
        self._connection.close()

    def __enter__(self) -> DuckDB:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _usable_cores() -> int:
    """The cores this process may run on, which in a container are fewer than the machine's."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
