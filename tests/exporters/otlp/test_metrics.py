"""Metrics: the numbers of a run that was built, as a real server gets them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.exporters.otlp.server import OtlpServer, Reply, partial
from tracekit.errors import UsageError
from tracekit.exporters._metrics.settings import MetricSettings, read_metric_settings
from tracekit.exporters._otel.resource import Resources
from tracekit.exporters._values import values
from tracekit.exporters.otel_metrics import DURATIONS_S, WAITS_S, RunMetrics, Sent
from tracekit.model import CLASSES
from tracekit.testing import RunBuilder

TYPES = ("gauge", "sum", "histogram")
Points = dict[tuple[Any, ...], Any]


def read(server: OtlpServer, **variables: str) -> MetricSettings:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, **variables}
    return read_metric_settings(environ)


def feed(metrics: RunMetrics, run: RunBuilder, missing: Collection[int] = ()) -> None:
    """Hand over a run as the agent would."""
    tables = run.without(*missing)
    columns = (values(tables["facts"][name]) for name in ("rank", "name", "value"))
    metrics.learn(zip(*columns, strict=True))
    for number in range(run.next_step):
        metrics.step(*(of_step(tables[name], number) for name in ("spans", "events")))


def of_step(rows: pa.Table, number: int) -> pa.Table:
    """As from parts: one chunk, sorted."""
    found = rows.filter(pc.equal(rows["step"], number)).unify_dictionaries().combine_chunks()
    time_ns = "start_ns" if "start_ns" in found.column_names else "time_ns"
    return found.sort_by([("rank", "ascending"), (time_ns, "ascending")])


def resources(run: RunBuilder) -> Resources:
    found = Resources("run-1", "my run", 0, {"team": "blue"})
    columns = (values(run.tables()["facts"][name]) for name in ("rank", "name", "value"))
    found.learn_all(zip(*columns, strict=True))
    return found


def sent(
    server: OtlpServer, run: RunBuilder, missing: Collection[int] = (), **variables: str
) -> Sent:
    """All of a run's metrics in one export, the last."""
    metrics = RunMetrics(read(server, **variables), resources(run))
    feed(metrics, run, missing)
    metrics.close(time.monotonic() + 30)
    return metrics.sent


def metrics_of(server: OtlpServer, place: int = -1) -> dict[str, Any]:
    """The metrics of a request by name."""
    received = server.received[place]
    assert received.path == "/v1/metrics"
    [resource] = received.message.resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == "tracekit"
    return {metric.name: metric for metric in scope.metrics}


def attributes_of(owner: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes
    }


def points(metric: Any) -> Points:
    """The value of each point, or its histogram, by rank and class."""
    kind = metric.WhichOneof("data")
    assert kind in TYPES
    found = {}
    for point in getattr(metric, kind).data_points:
        attributes = attributes_of(point)
        key = (attributes.pop("dl.rank"), *attributes.values())
        number = None if kind == "histogram" else getattr(point, point.WhichOneof("value"))
        found[key] = point if number is None else number
    return found


def seconds(metric: Any) -> dict[int, Any]:
    """Count and sum of a histogram by rank."""
    return {rank: (p.count, pytest.approx(p.sum)) for (rank,), p in points(metric).items()}


def trained(ranks: int = 2, **given: Any) -> RunBuilder:
    """Five steps of 37 ms, 1 ms of them transfer, in which rank 1 is 8 ms late."""
    run = RunBuilder(ranks, **given)
    for rank in range(ranks):
        run.fact("batch_size", 16, rank)
    for _ in range(5):
        number = run.step(forward={1: 18.0})
        for rank in range(ranks):
            run.event(rank, "loss", 2.0 - number / 10 - rank, step=number)
            run.event(rank, "memory", 1e9 + number, step=number)
    return run


def test_the_numbers_of_a_run_arrive(server: OtlpServer) -> None:
    told = sent(server, trained())
    found = metrics_of(server)
    step, wait = 2 + 18 + 20 + 1 + 3, 8
    assert seconds(found["tracekit.step.duration"]) == dict.fromkeys((0, 1), (5, 0.005 * step))
    assert seconds(found["tracekit.wait"]) == {0: (5, 5e-3 * wait), 1: (5, 0.0)}
    assert points(found["tracekit.steps"]) == {(0,): 5, (1,): 5}
    assert points(found["tracekit.samples"]) == {(0,): 80, (1,): 80}
    assert points(found["tracekit.loss"]) == {(0,): pytest.approx(1.6), (1,): pytest.approx(0.6)}
    assert points(found["tracekit.memory"]) == {(0,): 1e9 + 4, (1,): 1e9 + 4}
    shares = points(found["tracekit.step.share"])
    nothing = dict.fromkeys(CLASSES, 0.0)
    expected = {
        0: {**nothing, "compute": 33 / step, "data": 2 / step, "exposed_communication": 9 / step},
        1: {**nothing, "compute": 41 / step, "data": 2 / step, "exposed_communication": 1 / step},
    }
    assert shares == {
        (rank, name): pytest.approx(share)
        for rank, of_rank in expected.items()
        for name, share in of_rank.items()
    }
    assert (told.requests, told.rejected, told.refused, told.late, told.finished) == (
        1, 0, 0, 0, True,
    )  # fmt: skip


def test_metrics_have_units_and_say_what_they_are(server: OtlpServer) -> None:
    sent(server, trained())
    found = metrics_of(server)
    assert {name: (metric.unit, metric.WhichOneof("data")) for name, metric in found.items()} == {
        "tracekit.step.duration": ("s", "histogram"),
        "tracekit.wait": ("s", "histogram"),
        "tracekit.steps": ("{step}", "sum"),
        "tracekit.samples": ("{sample}", "sum"),
        "tracekit.step.share": ("1", "gauge"),
        "tracekit.loss": ("", "gauge"),
        "tracekit.loss.nonfinite": ("{loss}", "sum"),
        "tracekit.memory": ("By", "gauge"),
    }
    assert all(metric.description for metric in found.values())
    assert all(m.sum.is_monotonic for m in found.values() if m.WhichOneof("data") == "sum")
    for name, bounds in (("tracekit.step.duration", DURATIONS_S), ("tracekit.wait", WAITS_S)):
        assert tuple(found[name].histogram.data_points[0].explicit_bounds) == bounds


def test_the_resource_is_the_host(server: OtlpServer) -> None:
    run = trained()
    sent(server, run)
    [resource] = server.received[-1].message.resource_metrics
    found = attributes_of(resource.resource)
    other = dict(resources(run).of(0))
    assert found.pop("service.instance.id") != other["service.instance.id"]
    assert found == {
        "service.name": "my run",
        "tracekit.run.id": "run-1",
        "tracekit.attempt": 0,
        "team": "blue",
        "host.name": "node-0",
        "dl.world_size": 2,
    }


def test_hosts_are_instances_of_their_own() -> None:
    found = []
    for host in ("node-0", "node-1"):
        one = Resources("run-1", "my run", 0)
        one.learn(1, "rank", f'{{"host": "{host}", "boot_id": "b"}}')
        found.append(dict(one.of_host())["service.instance.id"])
    assert len(set(found)) == 2


@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("buckets", [0, 3])
def test_shares_of_a_rank_add_up_to_one(server: OtlpServer, buckets: int, batchnorm: bool) -> None:
    run = RunBuilder(3, buckets=buckets, batchnorm=batchnorm, jitter=0.3)
    for number in range(8):
        run.step(checkpoint={0: 5.0 * (number % 4 == 3)}, gc={1: 2.0}, other=0.5)
    sent(server, run)
    shares = points(metrics_of(server)["tracekit.step.share"])
    for rank in range(3):
        of_rank = {name: share for (of, name), share in shares.items() if of == rank}
        assert set(of_rank) == set(CLASSES)
        assert math.fsum(of_rank.values()) == pytest.approx(1.0, abs=1e-12)
        assert of_rank["compute"] > 0.5
    assert shares[0, "checkpoint"] > 0 == shares[1, "checkpoint"]


def test_where_members_are_elsewhere_no_wait_is_told(server: OtlpServer) -> None:
    sent(server, trained(4), missing={3})
    found = metrics_of(server)
    assert len(points(found["tracekit.step.duration"])) == 3
    assert "tracekit.wait" not in found


def test_between_two_clocks_no_wait_is_told(server: OtlpServer) -> None:
    sent(server, trained(hosts=("node-0", "node-1")))
    assert "tracekit.wait" not in metrics_of(server)


def test_a_loss_that_is_no_number_is_counted_and_not_shown(server: OtlpServer) -> None:
    run = trained(1)
    for value in (math.nan, math.inf, -math.inf):
        run.event(0, "loss", value, step=run.step())
    sent(server, run)
    found = metrics_of(server)
    assert points(found["tracekit.loss"]) == {(0,): pytest.approx(1.6)}
    assert points(found["tracekit.loss.nonfinite"]) == {(0,): 3}


def test_samples_are_counted_from_the_first_step_once_the_batch_size_is_known(
    server: OtlpServer,
) -> None:
    run = RunBuilder(1)
    run.steps(4)
    metrics = RunMetrics(read(server), resources(run))
    feed(metrics, run)
    metrics.learn([(0, "batch_size", "8"), (0, "batch_size", '"many"'), (None, "batch_size", "3")])
    metrics.close(time.monotonic() + 30)
    assert points(metrics_of(server)["tracekit.samples"]) == {(0,): 32}


def test_without_a_batch_size_there_are_no_samples(server: OtlpServer) -> None:
    run = RunBuilder(1)
    run.steps(2)
    sent(server, run)
    assert "tracekit.samples" not in metrics_of(server)


def test_what_tiling_leaves_at_the_end_is_no_step(server: OtlpServer) -> None:
    run = trained(1)
    number, [begin] = run._begin_step()
    run.span(0, "step", begin, begin + 10**12, "train_step", number)
    sent(server, run)
    assert points(metrics_of(server)["tracekit.steps"]) == {(0,): 5}


def test_a_step_without_phases_counts_when_another_follows(server: OtlpServer) -> None:
    run = trained(1)
    number, [begin] = run._begin_step()
    run.now[0] += 10**9
    run.span(0, "step", begin, run.now[0], "train_step", number)
    run.step()
    sent(server, run)
    assert points(metrics_of(server)["tracekit.steps"]) == {(0,): 7}


def test_an_untraced_step_is_a_step_of_which_no_share_is_known(server: OtlpServer) -> None:
    run = RunBuilder(1)
    run.untraced_step(10.0)
    sent(server, run)
    found = metrics_of(server)
    assert seconds(found["tracekit.step.duration"]) == {0: (1, 0.01)}
    assert not {"tracekit.step.share", "tracekit.wait"} & set(found)


def test_a_step_that_has_not_ended_is_not_counted(server: OtlpServer) -> None:
    run = trained(2)
    run.die(1)
    sent(server, run)
    assert points(metrics_of(server)["tracekit.steps"]) == {(0,): 5, (1,): 5}


def test_numbers_are_sent_every_so_often_and_add_up(server: OtlpServer) -> None:
    counts = exported_twice(server)
    assert counts == [5, 10]


def test_with_delta_each_export_begins_anew(server: OtlpServer) -> None:
    counts = exported_twice(server, OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta")
    assert counts == [5, 5]


def exported_twice(server: OtlpServer, **variables: str) -> list[int]:
    """How many steps two exports tell of rank 0, between which five were made."""
    run = trained(1)
    settings = read(server, OTEL_METRIC_EXPORT_INTERVAL="3600000", **variables)
    metrics = RunMetrics(settings, resources(run))
    for _ in range(2):
        feed(metrics, run)
        assert metrics._provider is not None
        metrics._provider.force_flush()
    metrics.close(time.monotonic() + 30)
    found = []
    for place in range(2):
        metric = metrics_of(server, place)["tracekit.step.duration"]
        [point] = points(metric).values()
        [steps] = points(metrics_of(server, place)["tracekit.steps"]).values()
        assert steps == point.count
        found.append(point.count)
    return found


def test_the_interval_is_that_of_the_environment(server: OtlpServer) -> None:
    run = trained(1)
    metrics = RunMetrics(read(server, OTEL_METRIC_EXPORT_INTERVAL="20"), resources(run))
    feed(metrics, run)
    give_up = time.monotonic() + 60
    while len(server.received) < 3 and time.monotonic() < give_up:
        time.sleep(0.01)
    metrics.close(time.monotonic() + 30)
    assert len(server.received) >= 3
    names = [set(metrics_of(server, place)) for place in range(3)]
    assert names[0] == names[1] == names[2]


def test_a_refusal_is_counted_and_what_a_server_rejects_too(server: OtlpServer) -> None:
    server.script(Reply(404))
    told = sent(server, trained(1))
    assert (told.requests, told.refused, told.late) == (0, 1, 0)
    assert told.message
    server.script(Reply(body=partial(7, "old", "metrics")))
    told = sent(server, trained(1))
    assert (told.requests, told.rejected, told.message) == (1, 7, "old")


@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(503)], ids=["hangs", "busy"])
def test_a_server_that_takes_nothing_does_not_hold_the_end(reply: Reply) -> None:
    with OtlpServer(*[reply] * 100) as server:
        run = trained(1)
        metrics = RunMetrics(read(server), resources(run))
        feed(metrics, run)
        deadline = time.monotonic() + 0.5
        metrics.close(deadline)
        # The SDK alone would take 30 s.
        assert time.monotonic() < deadline + 10
        assert (metrics.sent.requests, metrics.sent.refused) == (0, 0)
        assert not metrics.sent.finished


def test_what_the_sdk_does_not_take_is_told_once(
    server: OtlpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "sometimes")
    run = trained(1)
    metrics = RunMetrics(read(server), resources(run))
    with pytest.raises(ValueError, match="sometimes"):
        feed(metrics, run)
    threads = threading.active_count()
    feed(metrics, run)
    assert threading.active_count() <= threads
    metrics.close(time.monotonic() + 30)
    assert server.received == []


def test_with_delta_what_nobody_took_is_lost() -> None:
    with OtlpServer(*[Reply(503)] * 100) as server:
        run = trained(1)
        told = sent(
            server,
            run,
            OTEL_METRIC_EXPORT_TIMEOUT="1",
            OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta",
        )
    assert (told.requests, told.late, told.lost, told.whole) == (0, 1, 1, False)


def test_nothing_is_sent_of_a_run_without_steps(server: OtlpServer) -> None:
    sent(server, RunBuilder(1))
    assert server.received == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1e3"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "-5"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sometimes"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "nowhere"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_variable(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{variable}: "):
        read_metric_settings({variable: value})


def test_settings_have_defaults() -> None:
    found = read_metric_settings({"OTEL_METRIC_EXPORT_INTERVAL": " "})
    assert (found.interval_s, found.timeout_s, found.temporality) == (10.0, 30.0, "cumulative")
    assert found.otlp.endpoint == "http://localhost:4318/v1/metrics"
