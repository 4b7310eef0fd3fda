"""Two real servers of OTLP: Phoenix, which keeps traces and shows them, and the collector rotel.

A test takes the fixtures ``phoenix`` and ``rotel``; each is installed and started once a session.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.exporters.otlp.processes import Server, answers, environment, free_ports, started
from tests.exporters.otlp.readback import ReadSpan, spans_of, wait_for

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
PAGE = 500

get = build_opener(ProxyHandler({})).open  # this machine is never behind a proxy


class Phoenix:
    """A running server of ``arize-phoenix``; takes traces only.

    It keeps microseconds, and those with the error of a double; of a list the elements as
    ``name.0``, ``name.1``; of the resource, of links and of the scope nothing.
    """

    precision_ns = 1_000

    def __init__(self, server: Server, http: int, grpc: int) -> None:
        self.server = server
        self.endpoint_http = f"http://127.0.0.1:{http}"
        """What ``OTEL_EXPORTER_OTLP_ENDPOINT`` is for http/protobuf; the page as well."""
        self.endpoint_grpc = f"http://127.0.0.1:{grpc}"

    def spans(
        self, trace_id: str, *, at_least: int = 0, project: str = "default"
    ) -> list[ReadSpan]:
        """All spans of a trace, oldest first; waits until it holds ``at_least`` so many."""
        return wait_for(partial(self._read, trace_id, project), at_least)

    def page_url(self, trace_id: str) -> str:
        """The address at which a browser shows the trace."""
        return f"{self.endpoint_http}/redirects/traces/{trace_id}"

    def _read(self, trace_id: str, project: str) -> list[ReadSpan]:
        found: list[ReadSpan] = []
        query = {"trace_id": trace_id, "limit": str(PAGE), "sort": "start_time", "order": "asc"}
        while True:
            url = f"{self.endpoint_http}/v1/projects/{project}/spans?{urlencode(query)}"
            with get(url, timeout=60) as response:
                page = json.load(response)
            found += [of_phoenix(span) for span in page["data"]]
            if not page["next_cursor"]:
                return found
            query["cursor"] = page["next_cursor"]


def of_phoenix(span: dict[str, Any]) -> ReadSpan:
    return ReadSpan(
        trace_id=span["context"]["trace_id"],
        span_id=span["context"]["span_id"],
        parent_id=span["parent_id"] or "",
        name=span["name"],
        start_ns=nanoseconds(span["start_time"]),
        end_ns=nanoseconds(span["end_time"]),
        attributes=span["attributes"],
        events=tuple(event["name"] for event in span["events"]),
        status=span["status_code"],
    )


def nanoseconds(text: str) -> int:
    """Since 1970, of a time in ISO 8601 with at most microseconds."""
    since = datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    """Phoenix with an empty database, cut off from the internet."""
    venv = environment("arize-phoenix")

    def make() -> Phoenix:
        http, grpc = free_ports(2)
        folder = tmp_path_factory.mktemp("phoenix")
        variables = {
            "PHOENIX_WORKING_DIR": str(folder),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(http),
            "PHOENIX_GRPC_PORT": str(grpc),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
            "PHOENIX_ENABLE_MCP_SERVER": "false",
        }
        server = Server([str(venv / "bin/phoenix"), "serve"], folder, variables)
        return Phoenix(server, http, grpc)

    def is_ready(of: Phoenix) -> bool:
        try:
            with get(f"{of.endpoint_http}/healthz", timeout=5) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    found = started(make, is_ready)
    yield found
    found.server.stop()


class Rotel:
    """A running collector ``rotel`` that hands all it takes to ``received``, at once."""

    precision_ns = 1

    def __init__(self, server: Server, http: int, grpc: int, sink: Sink) -> None:
        self.server = server
        self.ports = (http, grpc)
        self.endpoint_http = f"http://127.0.0.1:{http}"
        self.endpoint_grpc = f"http://127.0.0.1:{grpc}"
        self._sink = sink

    def received(self, trace_id: str | None = None, *, at_least: int = 0) -> list[ReadSpan]:
        """All spans so far, or those of a trace; waits until they are ``at_least`` so many."""

        def read() -> list[ReadSpan]:
            found = [span for request in self._sink.traces() for span in spans_of(request)]
            return [span for span in found if trace_id in (None, span.trace_id)]

        return wait_for(read, at_least)

    def spans(self, trace_id: str, *, at_least: int = 0) -> list[ReadSpan]:
        """Those of a trace, as from any server."""
        return self.received(trace_id, at_least=at_least)

    def metrics(self, *, at_least: int = 0) -> list[ExportMetricsServiceRequest]:
        """The requests of metrics that came through so far."""
        return wait_for(self._sink.metrics, at_least)


class Sink(ThreadingHTTPServer):
    """The end of the line: keeps what a collector forwards by OTLP over HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Forwarded)
        self._kept: list[tuple[str, bytes]] = []
        self._thread = threading.Thread(target=self.serve_forever, name="sink", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def keep(self, path: str, body: bytes) -> None:
        self._kept.append((path, body))

    def traces(self) -> list[ExportTraceServiceRequest]:
        bodies = [body for path, body in self._kept if path == "/v1/traces"]
        return [ExportTraceServiceRequest.FromString(body) for body in bodies]

    def metrics(self) -> list[ExportMetricsServiceRequest]:
        bodies = [body for path, body in self._kept if path == "/v1/metrics"]
        return [ExportMetricsServiceRequest.FromString(body) for body in bodies]

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Forwarded(BaseHTTPRequestHandler):
    """One request of the collector; the empty answer means that everything was taken."""

    protocol_version = "HTTP/1.1"
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.server.keep(self.path, body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="session")
def rotel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotel]:
    """The collector, batching as it does by default but for at most 50 ms."""
    venv = environment("rotel")
    (agent,) = venv.glob("lib/python3.*/site-packages/rotel/rotel-agent")
    sink = Sink()

    def make() -> Rotel:
        http, grpc = free_ports(2)
        folder = tmp_path_factory.mktemp("rotel")
        options = {
            "--otlp-http-endpoint": f"127.0.0.1:{http}",
            "--otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
            "--pid-file": str(folder / "pid"),
            "--log-file": str(folder / "log-of-daemon"),
            "--batch-timeout": "50ms",
            "--exporter": "otlp",
            "--otlp-exporter-protocol": "http",
            "--otlp-exporter-endpoint": sink.url,
        }
        command = [str(agent), "start", *(part for pair in options.items() for part in pair)]
        return Rotel(Server(command, folder, {}), http, grpc, sink)

    try:
        running = started(make, lambda of: all(map(answers, of.ports)))
        yield running
        running.server.stop()
    finally:
        sink.stop()
