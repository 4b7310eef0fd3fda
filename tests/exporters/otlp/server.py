"""A real OTLP server over HTTP that does what a script says, and keeps what it was sent."""

from __future__ import annotations

import gzip
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace

__all__ = ["OtlpServer", "Received", "Reply", "partial", "request"]

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server does with one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: PROTOBUF)
    body: bytes = b""
    hang: bool = False
    """Answer nothing until the client or the server ends."""
    trickle_s: float | None = None
    """Seconds between two bytes of the answer, the status line's included."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    endless: bool = False
    """Go on with the body until the client ends the connection."""
    raw: bytes | None = None
    """Say this instead of HTTP and close the connection."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes
    """Decompressed."""
    port: int
    """The client's, one per connection."""

    @property
    def message(self) -> Any:
        """The request as protobuf, by what its path ends in."""
        if self.path.endswith("metrics"):
            return metrics.ExportMetricsServiceRequest.FromString(self.body)
        return trace.ExportTraceServiceRequest.FromString(self.body)


def request(name: str = "step") -> bytes:
    """A request with one span."""
    message = trace.ExportTraceServiceRequest()
    message.resource_spans.add().scope_spans.add().spans.add(name=name)
    return bytes(message.SerializeToString())


def partial(rejected: int, message: str = "", signal: str = "traces") -> bytes:
    """The body of a partial success."""
    response: Any
    if signal == "traces":
        response = trace.ExportTraceServiceResponse()
        response.partial_success.rejected_spans = rejected
    else:
        response = metrics.ExportMetricsServiceResponse()
        response.partial_success.rejected_data_points = rejected
    response.partial_success.error_message = message
    return bytes(response.SerializeToString())


class OtlpServer:
    """Serves on a port of this machine, a free one unless told, until the ``with`` block ends.

    Requests are answered by the script, in the order they come, and then with plain successes.
    As a proxy it answers requests for other hosts itself, and passes tunnels on.
    """

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.replies = deque(replies)
        self.received: list[Received] = []
        self.tunnels: list[Mapping[str, str]] = []
        """The headers of each CONNECT."""
        self.ended = Event()
        """Set when the client has ended a connection that hung, trickled or had no end."""
        self.stopping = Event()
        self._server = _Server(self, tls, port)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        """The URL to which the path of a signal is added."""
        return f"{'https' if self._server.tls else 'http'}://localhost:{self.port}"

    def script(self, *replies: Reply) -> None:
        """What comes next."""
        self.replies.extend(replies)

    def __enter__(self) -> OtlpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, owner: OtlpServer, tls: ssl.SSLContext | None, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.owner, self.tls = owner, tls
        self._open: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.tls is not None:
            connection = self.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self._open.append(connection)
        return connection, address

    def hang_up(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client's ends are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        owner.received.append(Received(self.path, headers, body, self.client_address[1]))
        reply = owner.replies.popleft() if owner.replies else Reply()
        try:
            self._answer(reply)
        except OSError:
            owner.ended.set()
            self.close_connection = True

    def do_CONNECT(self) -> None:
        self.server.owner.tunnels.append(dict(self.headers))
        self.close_connection = True
        if self.server.owner.replies:
            self._answer(self.server.owner.replies.popleft())
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as target:
            self.send_response(200)
            self.end_headers()
            back = Thread(target=_pass_on, args=(target, self.connection))
            back.start()
            _pass_on(self.connection, target)
            back.join()

    def log_message(self, format: str, *args: Any) -> None:
        """Tests speak for themselves."""

    def _answer(self, reply: Reply) -> None:
        if reply.hang:
            self._hang()
            return
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            self.close_connection = True
            return
        head = [f"HTTP/1.1 {reply.status} {self.responses.get(reply.status, ('Odd',))[0]}"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        if not reply.endless:
            head.append(f"Content-Length: {len(reply.body)}")
        answer = "\r\n".join([*head, "", ""]).encode() + reply.body[: reply.cut_after]
        if reply.trickle_s is None:
            self.wfile.write(answer)
        else:
            self._trickle(answer, reply.trickle_s)
        while reply.endless and not self.server.owner.stopping.is_set():
            self.wfile.write(bytes(1 << 16))
        if reply.cut_after is not None:
            self.close_connection = True

    def _hang(self) -> None:
        # Reads nothing before the client ends: it sends no second request unasked.
        if not self.rfile.read(1):
            self.server.owner.ended.set()
        self.close_connection = True

    def _trickle(self, answer: bytes, pause_s: float) -> None:
        for byte in answer:
            if self.server.owner.stopping.wait(pause_s):
                return
            self.wfile.write(bytes([byte]))


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
