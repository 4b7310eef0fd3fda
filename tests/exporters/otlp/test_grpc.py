"""Requests over gRPC against a real server that does what servers do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")

from tests.exporters.otlp.certificates import Certificates  # noqa: E402
from tests.exporters.otlp.server import partial, request  # noqa: E402
from tests.exporters.otlp.statuses import delay, status_bytes  # noqa: E402
from tracekit.exporters._otlp.client import Answer, Client, connect, deliver  # noqa: E402
from tracekit.exporters._otlp.settings import Settings, Signal, read_settings  # noqa: E402

SHORT_S = 0.5
DETAILS = "grpc-status-details-bin"
OTHER = ("type.googleapis.com/google.rpc.ErrorInfo", b"\x0a\x01x")


@dataclass(frozen=True)
class Refusal:
    """What the server aborts a call with."""

    code: Any
    message: str = ""
    trailing: tuple[tuple[str, bytes], ...] = ()


@dataclass
class GrpcServer:
    """Answers calls by its script, then with plain successes; keeps what it was sent."""

    port: int = 0
    secure: bool = False
    replies: deque[bytes | Refusal] = field(default_factory=deque)
    methods: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    hold: threading.Event | None = None
    """Calls wait for it."""

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.secure else 'http'}://localhost:{self.port}"

    def handle(self, call: Any) -> Any:
        def answer(body: bytes, context: Any) -> bytes:
            self.methods.append(call.method)
            self.metadata.append(dict(call.invocation_metadata))
            self.bodies.append(body)
            if self.hold is not None:
                self.hold.wait(10)
            reply = self.replies.popleft() if self.replies else b""
            if isinstance(reply, Refusal):
                context.set_trailing_metadata(reply.trailing)
                context.abort(reply.code, reply.message)
            return reply  # type: ignore[return-value]

        return grpc.unary_unary_rpc_method_handler(answer)


class Handler(grpc.GenericRpcHandler):  # type: ignore[name-defined,misc]
    def __init__(self, owner: GrpcServer) -> None:
        self._owner = owner

    def service(self, call: Any) -> Any:
        return self._owner.handle(call)


Serve = Callable[..., GrpcServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, and stops them after the test."""
    servers: list[Any] = []
    workers = ThreadPoolExecutor(4)

    def start(*replies: bytes | Refusal, credentials: Any = None, port: int = 0) -> GrpcServer:
        owner = GrpcServer(replies=deque(replies), secure=credentials is not None)
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        server = grpc.server(workers, handlers=[Handler(owner)], options=options)
        address = f"127.0.0.1:{port}"
        if credentials is None:
            owner.port = server.add_insecure_port(address)
        else:
            owner.port = server.add_secure_port(address, credentials)
        server.start()
        servers.append(server)
        return owner

    yield start
    for server in servers:
        server.stop(None).wait(10)
    workers.shutdown()


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    """Makes clients, and closes them after the test."""
    clients: list[Client] = []

    def make(server: GrpcServer, signal: Signal = "traces", **changes: Any) -> Client:
        settings = read_settings(signal, {}, endpoint=server.endpoint, protocol="grpc")
        clients.append(connect(replace(settings, **changes), signal))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


ClientOf = Callable[..., Client]


def details(*parts: tuple[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata that carries these details of an error."""
    return ((DETAILS, status_bytes("", *parts)),)


def test_a_request_arrives_as_the_protocol_says(serve: Serve, client_of: ClientOf) -> None:
    server = serve()
    client = client_of(server, headers={"authorization": "Bearer abc"})
    assert client.send(request()) == Answer(True)
    assert server.methods == ["/opentelemetry.proto.collector.trace.v1.TraceService/Export"]
    assert server.bodies == [request()]
    assert server.metadata[0]["authorization"] == "Bearer abc"
    assert str(server.metadata[0]["user-agent"]).startswith("tracekit/0.1.0 ")


def test_metrics_go_to_their_own_service(serve: Serve, client_of: ClientOf) -> None:
    server = serve(partial(3, "too old", "metrics"))
    assert client_of(server, "metrics").send(b"") == Answer(True, 3, "too old")
    assert server.methods == ["/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"]


def test_gzip_is_used_when_asked_for(serve: Serve, client_of: ClientOf) -> None:
    """The frame of a compressed message is smaller than the message; both arrive the same."""
    server = serve()
    body = request("s" * 100_000)
    for compression, shorter in (("none", False), ("gzip", True)):
        with Relay(server.port) as relay:
            settings = Settings(f"localhost:{relay.port}", "grpc", compression=compression)
            client = connect(settings, "traces")
            assert client.send(body).accepted
            client.close()
        assert (relay.passed < len(body)) == shorter
    assert server.bodies == [body, body]


class Relay:
    """Passes one connection on to a port of this machine, and counts what the client sent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.passed = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listener.close()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=self._pass, args=(server, client, False))
            back.start()
            self._pass(client, server, True)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.passed += len(data) * count
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_what_a_server_rejected_is_counted_and_not_sent_again(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve(partial(7, "spans are\ntoo old"), partial(0, "soon"), partial(-1))
    client = client_of(server)
    assert client.send(request()) == Answer(True, 7, "spans are too old")
    assert client.send(request()) == Answer(True, 0, "soon")
    assert client.send(request()) == Answer(True)


def test_a_success_that_cannot_be_read_is_a_success_with_a_message(
    serve: Serve, client_of: ClientOf
) -> None:
    answer = client_of(serve(b"\xff\xff")).send(request())
    assert answer.accepted
    assert answer.message.startswith("accepted, but the answer is unreadable: ")


@pytest.mark.parametrize(
    "code",
    ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"],
)
def test_a_server_in_trouble_is_asked_again(serve: Serve, client_of: ClientOf, code: str) -> None:
    server = serve(Refusal(grpc.StatusCode[code], "come\nback"))
    answer = client_of(server).send(request())
    assert answer == Answer(False, message=f"gRPC {code}: come back", retry=True)


@pytest.mark.parametrize(
    "code",
    [
        *("UNKNOWN", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED"),
        *("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "UNIMPLEMENTED", "INTERNAL"),
        "UNAUTHENTICATED",
    ],
)
def test_every_other_refusal_is_for_good(serve: Serve, client_of: ClientOf, code: str) -> None:
    server = serve(Refusal(grpc.StatusCode[code], "no"))
    answer = client_of(server).send(request())
    assert answer == Answer(False, message=f"gRPC {code}: no")


def test_an_exhausted_server_is_asked_again_only_if_it_says_when(
    serve: Serve, client_of: ClientOf
) -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    server = serve(
        Refusal(exhausted, "", details(OTHER, delay(2, 500_000_000))),
        Refusal(exhausted, "", details(delay(100_000))),
        Refusal(exhausted, "", details(OTHER)),
        Refusal(exhausted, "", ((DETAILS, b"\xff\xff"),)),
    )
    client = client_of(server)
    answers = [client.send(request()) for _ in range(4)]
    assert [(answer.retry, answer.after_s) for answer in answers] == [
        (True, 2.5),
        (True, 300.0),
        (False, None),
        (False, None),
    ]


def test_the_pause_that_a_server_asks_for_is_passed_on(serve: Serve, client_of: ClientOf) -> None:
    server = serve(
        Refusal(grpc.StatusCode.UNAVAILABLE, "", details(delay(9))),
        Refusal(grpc.StatusCode.INTERNAL, "", details(delay(9))),
    )
    client = client_of(server)
    assert client.send(request()) == Answer(False, 0, "gRPC UNAVAILABLE", True, 9.0)
    assert client.send(request()) == Answer(False, 0, "gRPC INTERNAL")


def test_a_server_that_repeats_a_secret_does_not_give_it_away(
    serve: Serve, client_of: ClientOf
) -> None:
    said = "x" * 160 + " you sent Bearer hunter2hunter2"
    server = serve(Refusal(grpc.StatusCode.UNAUTHENTICATED, said), partial(1, said))
    client = client_of(server, headers={"authorization": "Bearer hunter2hunter2"})
    for _ in range(2):
        message = client.send(request()).message
        assert "***" in message
        assert "hunter2" not in message
        assert len(message) <= 200


def test_a_server_that_says_nothing_is_waited_for_until_the_timeout(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve()
    server.hold = threading.Event()
    client = client_of(server, timeout_s=600.0)
    answer = client.send(request(), SHORT_S)
    server.hold.set()
    assert (answer.accepted, answer.retry) == (False, True)
    assert answer.message.startswith("gRPC DEADLINE_EXCEEDED")
    assert client.send(request()).accepted


def test_a_peer_that_does_not_speak_at_all_is_waited_for_until_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for secure in (False, True):
            port = deaf.getsockname()[1]
            settings = Settings(f"localhost:{port}", "grpc", secure=secure, timeout_s=SHORT_S)
            client = connect(settings, "traces")
            answer = client.send(request())
            client.close()
            assert (answer.accepted, answer.retry) == (False, True)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_without_time_nothing_is_sent(serve: Serve, client_of: ClientOf, timeout_s: float) -> None:
    server = serve()
    answer = client_of(server).send(request(), timeout_s)
    assert answer == Answer(False, message="no answer within 0 s", retry=True)
    assert server.bodies == []


def test_any_timeout_can_be_waited_for(serve: Serve, client_of: ClientOf) -> None:
    assert client_of(serve()).send(request(), float("inf")).accepted


def test_nobody_listening_may_change(serve: Serve, client_of: ClientOf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = client_of(GrpcServer(port))
    answer = client.send(request())
    assert (answer.accepted, answer.retry) == (False, True)
    assert answer.message.startswith("gRPC UNAVAILABLE: ")
    server = serve(port=port)
    pause = threading.Event()
    assert deliver(client, request(), lambda: False, pause.wait).accepted  # type: ignore[arg-type]
    assert server.bodies == [request()]


def test_an_answer_that_is_too_long_is_not_taken_in_and_its_status_counts(
    serve: Serve, client_of: ClientOf
) -> None:
    client = client_of(serve(bytes(5 << 20)))
    assert client.send(request()) == Answer(True, message="the answer is longer than 4 MiB")
    assert client.send(request()) == Answer(True)


def test_a_request_that_is_too_long_for_a_server_is_refused(
    serve: Serve, client_of: ClientOf
) -> None:
    said = "SERVER: Received message larger than max (5242880 vs. 4194304)"
    server = serve(Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, said))
    answer = client_of(server).send(request())
    assert answer == Answer(False, message=f"gRPC RESOURCE_EXHAUSTED: {said}")


def test_requests_are_sent_up_to_the_limit_of_the_protocol(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve()
    client = client_of(server)
    largest = bytes(64 << 20)
    assert client.send(largest).accepted
    answer = client.send(largest + b"x")
    assert (answer.accepted, answer.retry) == (False, False)
    assert answer.message == "not sent: 64.0 MiB are more than the 64 MiB allowed"
    assert [len(body) for body in server.bodies] == [64 << 20]


def test_closing_ends_what_is_on_its_way(serve: Serve, client_of: ClientOf) -> None:
    server = serve()
    server.hold = threading.Event()
    client = client_of(server, timeout_s=600.0)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(client.send(request())))
    thread.start()
    while not server.bodies:
        thread.join(0.01)
    client.close()
    thread.join(10)
    server.hold.set()
    assert answers
    assert (answers[0].accepted, answers[0].retry) == (False, True)
    again = client.send(request())
    assert (again.accepted, again.retry) == (False, True)
    client.close()
    assert len(server.bodies) == 1


def test_tls_trusts_the_authority_it_was_given(
    serve: Serve, client_of: ClientOf, certificates: Certificates
) -> None:
    chain = (
        certificates.key("server").read_bytes(),
        certificates.certificate("server").read_bytes(),
    )
    server = serve(credentials=grpc.ssl_server_credentials([chain]))
    assert client_of(server, certificate=certificates.authority).send(request()).accepted
    stranger = client_of(server).send(request())
    assert (stranger.accepted, stranger.retry) == (False, True)
    assert len(server.bodies) == 1


def test_a_server_may_ask_who_we_are(
    serve: Serve, client_of: ClientOf, certificates: Certificates
) -> None:
    chain = (
        certificates.key("server").read_bytes(),
        certificates.certificate("server").read_bytes(),
    )
    authority = certificates.authority.read_bytes()
    server = serve(
        credentials=grpc.ssl_server_credentials([chain], authority, require_client_auth=True)
    )
    trusted = {"certificate": certificates.authority}
    assert not client_of(server, **trusted).send(request()).accepted
    own = {
        "client_certificate": certificates.certificate("client"),
        "client_key": certificates.key("client"),
    }
    assert client_of(server, **trusted, **own).send(request()).accepted
    both = certificates.folder / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in own.values()))
    assert client_of(server, **trusted, client_certificate=both).send(request()).accepted


def test_grpc_is_loaded_only_by_those_who_use_it() -> None:
    code = (
        "import sys; from tracekit.exporters._otlp.settings import read_settings;"
        "from tracekit.exporters._otlp.client import connect;"
        "import tracekit.exporters._otlp.grpc_client;"
        "connect(read_settings('traces', {}), 'traces').close();"
        "read_settings('traces', {}, protocol='grpc'); print('grpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
