"""Metrics of real processes: by the agent, beside traces or alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from tests.exporters.otlp.readback import spans_of
from tests.exporters.otlp.server import OtlpServer, Reply
from tests.exporters.otlp.test_new_parts import HOST, Writer
from tracekit.errors import UsageError
from tracekit.exporters._live import run as live_run
from tracekit.exporters._live.metrics import LiveMetrics
from tracekit.exporters._live.run import Source
from tracekit.exporters._live.sampling import Rule
from tracekit.exporters._metrics.settings import read_metric_settings
from tracekit.exporters._otlp.client import connect
from tracekit.exporters._otlp.settings import read_settings
from tracekit.exporters.live import LiveExporter
from tracekit.model import CLASSES
from tracekit.session._live import live_rule

JOB = Path(__file__).with_name("live_job.py")
UNAVAILABLE = Reply(503)


def run(folder: Path, command: list[str], **variables: str) -> str:
    """Let a job and its agent end; returns what the agent had to say."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TRACEKIT_"))}
    done = subprocess.run(
        [sys.executable, *command],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [attempt] = folder.glob("**/attempt-000")
    give_up = time.monotonic() + 60
    while list(attempt.glob("journal/*.head.tkj")) or list(attempt.glob("agent-*.lock")):
        assert time.monotonic() < give_up, "the agent does not end"
        time.sleep(0.05)
    return "".join(path.read_text() for path in attempt.glob("agent-*.log"))


def job(folder: Path, steps: int, pause_s: float = 0.0, ranks: int = 2) -> list[str]:
    return [str(JOB), str(folder), str(steps), str(pause_s), str(ranks)]


def newest(server: OtlpServer) -> dict[str, dict[tuple[Any, ...], Any]]:
    """By metric, the last that came of each point, by its attributes' values."""
    found: dict[str, dict[tuple[Any, ...], Any]] = {}
    for one in server.received:
        if one.path == "/v1/metrics":
            for metric in one.message.resource_metrics[0].scope_metrics[0].metrics:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    key = tuple(
                        getattr(pair.value, pair.value.WhichOneof("value"))
                        for pair in point.attributes
                    )
                    value = (
                        point if kind == "histogram" else getattr(point, point.WhichOneof("value"))
                    )
                    found.setdefault(metric.name, {})[key] = value
    return found


def paths(server: OtlpServer) -> set[str]:
    return {one.path for one in server.received}


def test_the_agent_sends_metrics_beside_traces(tmp_path: Path) -> None:
    with OtlpServer() as server:
        said = run(tmp_path, job(tmp_path, 6), OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint)
        assert paths(server) == {"/v1/traces", "/v1/metrics"}
        assert newest(server)["tracekit.steps"] == {(0,): 6, (1,): 6}
        assert newest(server)["tracekit.loss"] == {(0,): 1.0, (1,): 1.0}
    assert said == ""


def test_without_traces_metrics_are_sent_alone(tmp_path: Path) -> None:
    with OtlpServer() as server:
        run(
            tmp_path,
            job(tmp_path, 4),
            OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint,
            OTEL_TRACES_EXPORTER="none",
        )
        assert paths(server) == {"/v1/metrics"}
        assert newest(server)["tracekit.steps"] == {(0,): 4, (1,): 4}
    assert not list(tmp_path.glob("**/otlp-*.json"))


@pytest.mark.slow
def test_a_backend_of_traces_that_is_away_does_not_hold_the_metrics_up(tmp_path: Path) -> None:
    with OtlpServer(*[UNAVAILABLE] * 1000) as traces, OtlpServer() as metrics:
        said = run(
            tmp_path,
            job(tmp_path, 10, pause_s=1.0),
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{traces.endpoint}/v1/traces",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{metrics.endpoint}/v1/metrics",
            OTEL_METRIC_EXPORT_INTERVAL="200",
        )
        assert newest(metrics)["tracekit.steps"] == {(0,): 10, (1,): 10}
        del metrics.received[1:]
        assert 0 < newest(metrics)["tracekit.steps"][0,] < 10
    assert f"localhost:{traces.port}" in said
    assert f"localhost:{metrics.port}" not in said


@pytest.mark.slow
def test_a_backend_of_metrics_that_is_away_does_not_hold_the_traces_up(tmp_path: Path) -> None:
    with OtlpServer() as traces, OtlpServer(*[Reply(hang=True)] * 1000) as metrics:
        said = run(
            tmp_path,
            job(tmp_path, 4),
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{traces.endpoint}/v1/traces",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{metrics.endpoint}/v1/metrics",
        )
        assert paths(traces) == {"/v1/traces"}
    assert f"localhost:{metrics.port}" in said


def test_a_rank_that_nobody_waited_for_counts_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "_HELD_FOR_S", 0.0)
    writer = Writer(tmp_path)
    with OtlpServer() as server:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        live = LiveMetrics(Source(tmp_path, 0, HOST, 2), read_metric_settings(environ))
        writer.write(0, 0, 5)
        for _ in range(3):
            live._serve()
        writer.write(1, 0, 5)
        live.start()
        live.end(60.0)
        told = live.wait()
        found = newest(server)
    assert found["tracekit.steps"] == {(0,): 6, (1,): 6}
    assert "tracekit.wait" not in found
    assert told.whole


def test_steps_are_whole_where_the_last_rank_is_written_during_the_last_but_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    writer.write(0, 0, 5)
    with OtlpServer() as server:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        source = Source(tmp_path, 0, HOST, 2)
        client = connect(read_settings("traces", environ), "traces")
        metrics = LiveMetrics(source, read_metric_settings(environ))
        traces = LiveExporter(source, client, server.endpoint, Rule(first=6))
        ended = Barrier(3)
        for live in (metrics, traces):
            _look_ends_late(live, ended, monkeypatch)
            live.start()
        ended.wait()
        writer.write(1, 0, 5, final=True)
        metrics.end(60.0)
        finishing = Thread(target=traces.finish, args=(60.0,))
        finishing.start()
        while not traces._ending.is_set():
            time.sleep(0.001)
        ended.wait()
        finishing.join()
        assert metrics.wait().whole
        waits = newest(server)["tracekit.wait"]
        assert {rank: wait.count for rank, wait in waits.items()} == {(0,): 6, (1,): 6}
        sent = [one for one in server.received if one.path == "/v1/traces"]
    spans = [span for one in sent for span in spans_of(one.message)]
    waited = {
        (span.trace_id, span.resource["dl.rank"])
        for span in spans
        if "tracekit.wait_ns" in span.attributes
    }
    assert len({trace for trace, _ in waited}) == 6
    assert len(waited) == 12


def _look_ends_late(live: Any, ended: Barrier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look has found what there is, and goes on when all is written."""
    look, first = live._live.look, [True]

    def looks(*told: bool) -> Any:
        found = look(*told)
        if first.pop() if first else False:
            ended.wait()
            ended.wait()
        return found

    monkeypatch.setattr(live._live, "look", looks)


def test_who_a_rank_is_may_be_read_while_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-000" / "ranks"
    folder.mkdir(parents=True)
    live = live_run.LiveRun(Source(tmp_path, 0, HOST, 2), {})
    texts = [json.dumps({"rank": rank, "clock_domain": "boot:0"}) for rank in range(2)]
    paths = [folder / f"rank-0000{rank}.{HOST}-{100 + rank}.json" for rank in range(2)]
    paths[0].write_text(texts[0])
    paths[1].write_text(texts[1][:12])
    live.look()
    assert live.ranks == {0}
    paths[1].write_text(texts[1])
    live.look()
    assert live.ranks == {0, 1}
    assert live.resources.domain(0) == live.resources.domain(1) == "boot:0"


def test_a_part_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(0, 0, 5).write_bytes(b"")
    with OtlpServer() as server:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}
        live = LiveMetrics(Source(tmp_path, 0, HOST, 2), read_metric_settings(environ))
        live.start()
        live.end(60.0)
        told = live.wait()
    assert (told.errors, told.whole) == (1, False)
    assert "spans" in told.message


@pytest.mark.slow
def test_the_numbers_of_a_demo_arrive(tmp_path: Path) -> None:
    steps = 20
    command = ["-m", "tracekit", "demo", "--steps", str(steps), "-o", str(tmp_path / "demo")]
    with OtlpServer() as server:
        run(
            tmp_path,
            command,
            OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint,
            OTEL_METRIC_EXPORT_INTERVAL="500",
        )
        found = newest(server)
    ranks = {(rank,) for rank in range(4)}
    assert found["tracekit.steps"] == dict.fromkeys(ranks, steps)
    for rank in ranks:
        duration, wait = found["tracekit.step.duration"][rank], found["tracekit.wait"][rank]
        assert duration.count == wait.count == steps
        assert 0 < wait.sum < duration.sum
        assert found["tracekit.samples"][rank] > 0
        assert found["tracekit.memory"][rank] > 1 << 20
        assert found["tracekit.loss"][rank] > 0
        shares = {key[1]: s for key, s in found["tracekit.step.share"].items() if key[:1] == rank}
        assert set(shares) == set(CLASSES)
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)


def test_whether_metrics_are_wanted_decides_without_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert live_rule(None, None) == "none"
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert live_rule(None, None) is None


def test_metrics_that_cannot_be_sent_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    rule = live_rule(None, None)
    assert rule is not None
    assert rule != "none"
    assert "no live metrics: OTEL_METRIC_EXPORT_INTERVAL: 'soon'" in caplog.text
    with pytest.raises(UsageError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        live_rule(True, None)
    with pytest.raises(UsageError):
        read_metric_settings()
