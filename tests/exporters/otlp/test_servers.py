"""What we send by hand arrives whole at servers that others wrote, by both transports."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import grpc
import pytest
import urllib3
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tests.exporters.otlp.readback import ReadSpan, spans_of
from tests.exporters.otlp.servers import Phoenix, Rotel

ROOT = Path(__file__).parents[3]
START_NS = 1_790_000_000_123_456_789
RANKS = 2


class OtlpServer(Protocol):
    precision_ns: int
    endpoint_http: str
    endpoint_grpc: str

    def spans(self, trace_id: str, *, at_least: int = 0) -> list[ReadSpan]: ...


@pytest.fixture(params=["phoenix", "rotel"])
def server(request: pytest.FixtureRequest) -> OtlpServer:
    found: OtlpServer = request.getfixturevalue(request.param)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_step_of_two_ranks_reads_back_as_it_was_sent(server: OtlpServer, protocol: str) -> None:
    step = one_step(os.urandom(16))
    send = {"http": send_http, "grpc": send_grpc}[protocol]
    send(getattr(server, f"endpoint_{protocol}"), step)
    sent = spans_of(step)
    trace_id = sent[0].trace_id
    read = {span.span_id: span for span in server.spans(trace_id, at_least=len(sent))}
    assert len(read) == len(sent) == 2 * RANKS
    for span in sent:
        back = read[span.span_id]
        assert (back.trace_id, back.parent_id, back.name) == (trace_id, span.parent_id, span.name)
        assert back.attributes == span.attributes
        assert {name: type(value) for name, value in back.attributes.items()} == {
            name: type(value) for name, value in span.attributes.items()
        }
        assert abs(back.start_ns - span.start_ns) < server.precision_ns
        assert abs(back.end_ns - span.end_ns) < server.precision_ns
        assert (back.status, back.events) == (span.status, span.events)


@pytest.mark.slow
def test_a_collector_hands_on_resources_and_links(rotel: Rotel) -> None:
    step = one_step(os.urandom(16))
    send_grpc(rotel.endpoint_grpc, step)
    sent = spans_of(step)
    read = rotel.received(sent[0].trace_id, at_least=len(sent))
    assert sorted(read, key=by_id) == sorted(sent, key=by_id)
    assert {span.resource["dl.rank"] for span in read} == {0, 1}


@pytest.mark.slow
def test_a_collector_hands_on_metrics(rotel: Rotel) -> None:
    request = ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    of_resource.resource.attributes.append(pair("service.name", "by hand"))
    metric = of_resource.scope_metrics.add().metrics.add(name="tracekit.samples", unit="{sample}")
    metric.sum.data_points.add(time_unix_nano=START_NS, as_int=7)
    post(f"{rotel.endpoint_http}/v1/metrics", request.SerializeToString())
    (arrived,) = rotel.metrics(at_least=1)
    assert arrived == request


@pytest.mark.slow
def test_all_pages_of_a_long_trace_are_read(phoenix: Phoenix) -> None:
    step = one_step(os.urandom(16))
    scope = step.resource_spans[0].scope_spans[0]
    for number in range(1_100):
        span = scope.spans.add(trace_id=scope.spans[0].trace_id, span_id=os.urandom(8))
        span.name = "all_reduce"
        span.start_time_unix_nano = span.end_time_unix_nano = START_NS + number * 1_000_000
    send_http(phoenix.endpoint_http, step)
    sent = spans_of(step)
    read = phoenix.spans(sent[0].trace_id, at_least=len(sent))
    assert sorted(span.span_id for span in read) == sorted(span.span_id for span in sent)
    assert [span.start_ns for span in read] == sorted(span.start_ns for span in read)


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path;"
        "from tests.exporters.otlp.processes import Server;"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)'];"
        "print(Server(command, Path(sys.argv[1]), {}).pid, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    with starter.stdout:
        pid = int(starter.stdout.readline())
        server = os.pidfd_open(pid)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    try:
        ended, _, _ = select.select([server], [], [], 60)
        assert ended == [server]
    finally:
        os.close(server)


def one_step(trace_id: bytes) -> ExportTraceServiceRequest:
    """A step of two ranks: each a root ``train_step`` and under it an ``all_reduce``."""
    request = ExportTraceServiceRequest()
    for rank in range(RANKS):
        of_resource = request.resource_spans.add()
        of_resource.resource.attributes.extend(
            [pair("service.name", "by hand"), pair("host.name", "here"), pair("dl.rank", rank)]
        )
        of_scope = of_resource.scope_spans.add()
        of_scope.scope.name = "tracekit"
        root = of_scope.spans.add(name="train_step", trace_id=trace_id, span_id=os.urandom(8))
        root.start_time_unix_nano = START_NS + rank
        root.end_time_unix_nano = START_NS + 50_000_001
        root.attributes.extend(
            [pair("tracekit.kind", "step"), pair("dl.iteration", 17), pair("dl.loss", 0.1 + 0.2)]
        )
        root.events.add(name="gc", time_unix_nano=START_NS + 7)
        root.links.add(trace_id=os.urandom(16), span_id=os.urandom(8))
        call = of_scope.spans.add(name="all_reduce", trace_id=trace_id, span_id=os.urandom(8))
        call.parent_span_id = root.span_id
        call.start_time_unix_nano = START_NS + 10_000_003
        call.end_time_unix_nano = START_NS + 40_000_009
        call.attributes.extend(
            [
                pair("tracekit.wait_ns", 2**53 + 1),
                pair("tracekit.straggler", rank == 1),
                pair("tracekit.collective.op", "all_reduce"),
                pair("tracekit.collective.bytes", 4 << 20),
            ]
        )
        if rank == 1:
            call.status.code = call.status.STATUS_CODE_ERROR
    return request


def pair(key: str, value: bool | int | float | str) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    return KeyValue(key=key, value=AnyValue(string_value=value))


def send_http(endpoint: str, request: ExportTraceServiceRequest) -> None:
    post(f"{endpoint}/v1/traces", request.SerializeToString())


def post(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/x-protobuf"}
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", url, body=body, headers=headers, timeout=60)
    assert answer.status == 200, answer.data


def send_grpc(endpoint: str, request: ExportTraceServiceRequest) -> None:
    with grpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        export = channel.unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            request_serializer=ExportTraceServiceRequest.SerializeToString,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )
        export(request, timeout=60)


def by_id(span: ReadSpan) -> str:
    return span.span_id
