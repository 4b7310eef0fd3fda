"""Spans of PyTorch and of TensorFlow are one table for whoever asks."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import duckdb
import pytest
import tf_keras

import tracekit
from tests.adapters.tensorflow.small import fit, model_of
from tracekit.adapters.tensorflow import TracekitCallback
from tracekit.cli import main

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The spans of a training with each, as patterns of Parquet files."""
    from tracekit.adapters.torch import trace

    folder = tmp_path_factory.mktemp("both")
    tracekit.start(run="torch", dir=str(folder), agent=False)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.rand(64, 4), batch_size=8)
    handle = trace(model, optimizer=optimizer, loader=data)
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    handle.detach()
    tracekit.stop()
    tracekit.start(run="tensorflow", dir=str(folder), agent=False)
    fit(model_of(tf_keras), [TracekitCallback()])
    tracekit.stop()
    for name in ("torch", "tensorflow"):
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["compact", str(folder / name)]) == 0
    return _parquet(folder / "torch"), _parquet(folder / "tensorflow")


def _parquet(run: Path) -> str:
    return f"{run}/spans/**/*.parquet"


def rows(sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = duckdb.connect().execute(sql).fetchall()
    return found


def test_both_have_the_same_columns_of_the_same_types(tables: tuple[str, str]) -> None:
    described = [rows(f"describe select * from read_parquet('{one}')") for one in tables]
    assert described[0] == described[1]
    assert {"run_id", "rank", "step", "kind", "name", "duration_ns"} <= {
        column[0] for column in described[0]
    }


def test_one_question_is_answered_of_both(tables: tuple[str, str]) -> None:
    """How long a mean step is, and what of it each phase takes."""
    sql = f"""
        with spans as (select * from read_parquet({list(tables)}))
        select kind, count(distinct run_id) as runs, min(duration_ns) as least
        from spans where step is not null group by kind
        """
    found = {kind: (runs, least) for kind, runs, least in rows(sql)}
    for kind in ("step", "data", "forward", "backward"):
        assert found[kind][0] == 2, kind
        assert found[kind][1] >= 0
