"""A real training of four ranks, live, at servers that others wrote."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Protocol

import pytest

from tests.exporters.otlp.readback import ReadSpan
from tests.exporters.otlp.servers import Phoenix, Rotel
from tracekit.dataset import open_run
from tracekit.exporters._otel.spans import RunIds
from tracekit.model import span_id

STEPS, RANKS = 12, 4


class Server(Protocol):
    precision_ns: int
    endpoint_http: str
    endpoint_grpc: str

    def spans(self, trace_id: str, *, at_least: int = 0) -> list[ReadSpan]: ...


def demo(run_dir: Path, endpoint: str, protocol: str) -> None:
    """Train with a slow rank 2, every step exported; returns when the agent has ended too."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TRACEKIT_"))},
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_METRICS_EXPORTER": "none",
        "TRACEKIT_OTLP": "all",
    }
    command = [sys.executable, "-m", "tracekit", "demo", "--fault", "forward:2"]
    command += ["--steps", str(STEPS), "-o", str(run_dir)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    while list((run_dir / "attempt-000").glob("agent-*.lock")):
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("name", ["phoenix", "rotel"])
def test_a_live_demo_arrives_complete(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, protocol: str
) -> None:
    server: Server = request.getfixturevalue(name)
    assert isinstance(server, (Phoenix, Rotel))
    run_dir = tmp_path / "demo"
    demo(run_dir, server.endpoint_grpc if protocol == "grpc" else server.endpoint_http, protocol)
    with open_run(run_dir) as run:
        rows = run.table("spans").to_pylist()
        (told,) = run.coverage.exports
        ids = RunIds(run.run_id, 0)
        assert run.ranks == tuple(range(RANKS))
    assert told.spans == len(rows) + RANKS + 1  # and the spans around everything
    assert (told.rejected, told.refused, told.left_spans, told.folded) == (0, 0, 0, 0)
    steps = {row["step"] for row in rows}
    assert len(steps - {None}) >= STEPS
    for step in steps:
        mine = {
            span_id(ids.uid, 0, r["rank"], r["span_id"]).hex(): r for r in rows if r["step"] == step
        }
        around = 0 if step is not None else RANKS + 1
        read = server.spans(ids.trace(step).hex(), at_least=len(mine) + around)
        found = Counter(span.span_id for span in read)
        assert set(found.values()) == {1}
        assert len(set(found) - set(mine)) == around
        assert set(mine) <= set(found)
        for span in read:
            row = mine.get(span.span_id)
            if row is not None:
                assert span.name == row["name"]
                assert abs(span.start_ns - row["start_ns"]) < server.precision_ns
        if step is not None:
            assert {row["rank"] for row in mine.values()} == set(range(RANKS))
