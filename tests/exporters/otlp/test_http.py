"""Requests over HTTP against a real server that does what servers do."""

from __future__ import annotations

import base64
import gc
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.certificates import Certificates, make_certificates
from tests.exporters.otlp.server import OtlpServer, Reply, partial, request
from tests.exporters.otlp.statuses import status_bytes
from tracekit.exporters._otlp.client import Answer, Client, connect
from tracekit.exporters._otlp.settings import Settings, Signal, read_settings

TEXT = {"Content-Type": "text/plain"}
SHORT_S = 0.5
"""How long a client waits for what never comes."""


@pytest.fixture
def server() -> Iterator[OtlpServer]:
    with OtlpServer() as server:
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


class Sender:
    """A client that is closed with the ``with`` block."""

    def __init__(self, server: OtlpServer, signal: Signal = "traces", **changes: Any) -> None:
        settings = read_settings(signal, {}, endpoint=server.endpoint)
        self.client: Client = connect(replace(settings, **changes), signal)

    def __enter__(self) -> Client:
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()


def answer_to(server: OtlpServer, *replies: Reply, **changes: Any) -> Answer:
    """What comes of one request when the server does this."""
    server.script(*replies)
    with Sender(server, **changes) as client:
        return client.send(request())


@contextmanager
def by_hand(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a server that does this with its one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            thread.join()


def test_a_request_arrives_as_the_protocol_says(server: OtlpServer) -> None:
    answer = answer_to(server, headers={"authorization": "Bearer abc", "x-b": "a b"})
    assert answer == Answer(True)
    (received,) = server.received
    assert received.path == "/v1/traces"
    assert received.headers["content-type"] == "application/x-protobuf"
    assert received.headers["authorization"] == "Bearer abc"
    assert received.headers["x-b"] == "a b"
    assert received.headers["user-agent"] == "tracekit/0.1.0"
    assert "content-encoding" not in received.headers
    assert received.body == request()
    assert received.message.resource_spans[0].scope_spans[0].spans[0].name == "step"


def test_gzip_is_used_when_asked_for(server: OtlpServer) -> None:
    assert answer_to(server, compression="gzip").accepted
    (received,) = server.received
    assert received.headers["content-encoding"] == "gzip"
    assert int(received.headers["content-length"]) != len(request())
    assert received.body == request()


def test_metrics_go_to_their_own_path(server: OtlpServer) -> None:
    server.script(Reply(body=partial(3, "too old", "metrics")))
    with Sender(server, "metrics") as client:
        assert client.send(b"") == Answer(True, 3, "too old")
    assert server.received[0].path == "/v1/metrics"
    assert not server.received[0].message.resource_metrics


def test_one_connection_serves_many_requests(server: OtlpServer) -> None:
    server.script(Reply(), Reply(503, body=b"busy"), Reply(400), Reply(body=partial(1, "no")))
    with Sender(server) as client:
        for _ in range(6):
            client.send(request())
    assert len(server.received) == 6
    assert len({received.port for received in server.received}) == 1


def test_a_connection_that_the_server_closed_is_made_anew(server: OtlpServer) -> None:
    closing = Reply(headers={"Connection": "close"}, cut_after=1 << 20)
    with Sender(server) as client:
        for _ in range(3):
            server.script(closing)
            assert client.send(request()).accepted
    assert len({received.port for received in server.received}) == 3


def test_what_a_server_rejected_is_counted_and_not_sent_again(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(body=partial(7, "spans are\ntoo old")))
    assert answer == Answer(True, 7, "spans are too old")


def test_a_warning_is_passed_on(server: OtlpServer) -> None:
    assert answer_to(server, Reply(body=partial(0, "soon"))) == Answer(True, 0, "soon")


def test_a_negative_count_of_rejected_is_none(server: OtlpServer) -> None:
    assert answer_to(server, Reply(body=partial(-5))) == Answer(True)


@pytest.mark.parametrize("status", [200, 202, 204])
def test_a_success_without_a_body_is_a_success(server: OtlpServer, status: int) -> None:
    assert answer_to(server, Reply(status)) == Answer(True)


def test_a_success_that_cannot_be_read_is_a_success_with_a_message(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(headers=TEXT, body=b"<html>hello</html>"))
    assert answer.accepted
    assert not answer.retry
    assert answer.message.startswith("accepted, but the answer is unreadable: ")


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"{}", Answer(True)),
        (b"", Answer(True)),
        (b'{"partialSuccess": null}', Answer(True)),
        (
            b'{"partialSuccess": {"rejectedSpans": "4", "errorMessage": "old"}}',
            Answer(True, 4, "old"),
        ),
    ],
)
def test_a_server_may_answer_in_json(server: OtlpServer, body: bytes, answer: Answer) -> None:
    said = {"Content-Type": "application/json; charset=utf-8"}
    assert answer_to(server, Reply(headers=said, body=body)) == answer


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"partialSuccess": {"rejectedSpans": "x"}}'])
def test_odd_json_is_a_success_with_a_message(server: OtlpServer, body: bytes) -> None:
    answer = answer_to(server, Reply(headers={"Content-Type": "application/json"}, body=body))
    assert answer.accepted
    assert "unreadable" in answer.message


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(server: OtlpServer, status: int) -> None:
    answer = answer_to(server, Reply(status, TEXT, b"busy"))
    assert (answer.accepted, answer.retry, answer.after_s) == (False, True, None)
    assert answer.message.startswith(f"HTTP {status} ")
    assert answer.message.endswith(": busy")


@pytest.mark.parametrize("status", [304, 400, 401, 403, 404, 408, 413, 500, 501, 505, 599])
def test_every_other_refusal_is_for_good(server: OtlpServer, status: int) -> None:
    answer = answer_to(server, Reply(status, {**TEXT, "Retry-After": "3"}))
    assert (answer.accepted, answer.retry, answer.after_s) == (False, False, None)
    assert answer.message.startswith(f"HTTP {status} ")


def test_the_status_in_a_refusal_is_read(server: OtlpServer) -> None:
    body = status_bytes("no such tenant")
    assert (
        answer_to(server, Reply(400, body=body)).message == "HTTP 400 Bad Request: no such tenant"
    )
    odd = answer_to(server, Reply(400, body=b"\xff\xff"))
    assert odd.message == "HTTP 400 Bad Request"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("0", 0.0), ("100000", 300.0), ("9" * 5000, 300.0)],
)
def test_a_pause_in_seconds_is_passed_on(server: OtlpServer, text: str, seconds: float) -> None:
    assert answer_to(server, Reply(503, {"Retry-After": text})).after_s == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("soon", "-3", "1.5", "nan", "", "Mon, 99 Foo 2026"),
        f"Mon, 30 Nov {'9' * 20} 00:00:00 GMT",
        "Mon, 30 Nov 2026 00:00:00 +999999",
    ],
)
def test_a_pause_that_makes_no_sense_is_none(server: OtlpServer, text: str) -> None:
    answer = answer_to(server, Reply(429, {"Retry-After": text}))
    assert (answer.retry, answer.after_s) == (True, None)


def test_a_pause_until_a_date_is_passed_on(server: OtlpServer) -> None:
    now = datetime.now(timezone.utc)
    far, past = now + timedelta(days=1), now - timedelta(days=1)
    for date, seconds in ((far, 300.0), (past, 0.0)):
        reply = Reply(503, {"Retry-After": format_datetime(date, usegmt=True)})
        assert answer_to(server, reply).after_s == seconds
    near = Reply(503, {"Retry-After": format_datetime(now + timedelta(seconds=200), usegmt=True)})
    after_s = answer_to(server, near).after_s
    assert after_s is not None
    assert 0 < after_s < 300


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_names_the_other_host(server: OtlpServer, status: int) -> None:
    with OtlpServer() as other:
        target = f"http://me:hunter2@localhost:{other.port}/x?key=hunter2"
        answer = answer_to(server, Reply(status, {"Location": target}))
        assert (answer.accepted, answer.retry) == (False, False)
        where = f"redirected to http://localhost:{other.port}, not followed"
        assert answer.message.endswith(where)
        assert other.received == []
    assert len(server.received) == 1


@pytest.mark.parametrize("target", ["/login", "http://c:port/", "http://[", ""])
def test_an_odd_redirect_is_refused(server: OtlpServer, target: str) -> None:
    answer = answer_to(server, Reply(302, {"Location": target}))
    assert (answer.accepted, answer.retry) == (False, False)
    assert answer.message.startswith("HTTP 302 Found: redirected to ")


def test_a_message_is_one_short_line_that_can_be_shown(server: OtlpServer) -> None:
    body = "a\r\n\x1b[31mb\x00\u202e".encode() + b"\xff" + b" x" * 500
    message = answer_to(server, Reply(400, TEXT, body)).message
    assert message.startswith("HTTP 400 Bad Request: a [31mb \ufffd x x")
    assert message.isprintable()
    assert len(message) == 200


@pytest.mark.parametrize("status", [200, 400])
def test_a_server_that_repeats_a_secret_does_not_give_it_away(
    server: OtlpServer, status: int
) -> None:
    said = "x" * 160 + " you sent Bearer hunter2hunter2"
    body = partial(1, said) if status == 200 else said.encode()
    headers = {} if status == 200 else TEXT
    answer = answer_to(
        server, Reply(status, headers, body), headers={"authorization": "Bearer hunter2hunter2"}
    )
    assert "***" in answer.message
    assert "hunter2" not in answer.message


def test_an_answer_without_end_is_left_and_its_status_counts(server: OtlpServer) -> None:
    good = answer_to(server, Reply(endless=True))
    assert good == Answer(True, message="the answer is longer than 4 MiB")
    bad = answer_to(server, Reply(500, TEXT, endless=True))
    assert (bad.accepted, bad.retry) == (False, False)
    assert bad.message.startswith("HTTP 500 Internal Server Error")
    assert server.ended.wait(10)


def test_a_small_answer_that_unpacks_to_much_is_not_unpacked(server: OtlpServer) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    answer = answer_to(server, Reply(headers={"Content-Encoding": "gzip"}, body=bomb))
    assert answer.accepted
    assert "unreadable" in answer.message


def test_a_compressed_answer_is_read(server: OtlpServer) -> None:
    packed = Reply(headers={"Content-Encoding": "gzip"}, body=gzip.compress(partial(2, "old")))
    assert answer_to(server, packed) == Answer(True, 2, "old")
    torn = Reply(headers={"Content-Encoding": "gzip"}, body=b"no gzip")
    assert "unreadable" in answer_to(server, torn).message


def test_a_success_that_breaks_off_may_be_sent_again(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(body=partial(1, "long" * 20), cut_after=5))
    assert (answer.accepted, answer.retry) == (False, True)
    assert answer.message == "the connection ended in the middle of the answer"


def test_a_refusal_that_breaks_off_is_a_refusal(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(400, TEXT, b"no " * 99, cut_after=5))
    assert (answer.accepted, answer.retry, answer.message) == (False, False, "HTTP 400 Bad Request")


def test_a_server_that_says_nothing_is_waited_for_until_the_timeout(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(hang=True), timeout_s=SHORT_S)
    assert answer == Answer(False, message="no answer within 0.5 s", retry=True)
    assert server.ended.wait(10)


def test_the_timeout_of_a_request_can_be_shorter(server: OtlpServer) -> None:
    server.script(Reply(hang=True))
    with Sender(server, timeout_s=600.0) as client:
        assert client.send(request(), 0.1).message == "no answer within 0.1 s"
        assert client.send(request()).accepted


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_without_time_nothing_is_sent(server: OtlpServer, timeout_s: float) -> None:
    with Sender(server) as client:
        assert client.send(request(), timeout_s) == Answer(
            False, message="no answer within 0 s", retry=True
        )
    assert server.received == []


def test_any_timeout_can_be_waited_for(server: OtlpServer) -> None:
    with Sender(server) as client:
        assert client.send(request(), float("inf")).accepted


def test_a_trickle_does_not_hold_longer_than_the_timeout(server: OtlpServer) -> None:
    """The answer would take a minute, and each byte comes long before any socket's timeout."""
    trickle = Reply(body=partial(1, "x" * 1100), trickle_s=0.05)
    answer = answer_to(server, trickle, timeout_s=SHORT_S)
    assert answer.message == "no answer within 0.5 s"
    assert server.ended.wait(10)


def test_a_server_that_promises_for_ever_does_not_hold_longer_than_the_timeout() -> None:
    gone = threading.Event()

    def promise(connection: socket.socket) -> None:
        try:
            while not gone.wait(0.01):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        except OSError:
            gone.set()

    with by_hand(promise) as endpoint:
        client = connect(Settings(endpoint, timeout_s=SHORT_S), "traces")
        answer = client.send(request())
        client.close()
        assert gone.wait(10)
    assert answer == Answer(False, message="no answer within 0.5 s", retry=True)


def test_a_server_that_reads_nothing_does_not_hold_longer_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        settings = Settings(f"http://127.0.0.1:{deaf.getsockname()[1]}/", timeout_s=SHORT_S)
        client = connect(settings, "traces")
        answer = client.send(bytes(32 << 20))
        client.close()
    assert answer == Answer(False, message="no answer within 0.5 s", retry=True)


def test_a_handshake_that_never_ends_does_not_hold_longer_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        settings = Settings(f"https://127.0.0.1:{port}/", secure=True, timeout_s=SHORT_S)
        client = connect(settings, "traces")
        answer = client.send(request())
        client.close()
    assert not answer.accepted
    assert answer.retry


def test_a_refusal_whose_body_never_comes_is_a_refusal() -> None:
    enough = threading.Event()

    def refuse(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\n")
        enough.wait(10)

    with by_hand(refuse) as endpoint:
        client = connect(Settings(endpoint, timeout_s=1.0), "traces")
        answer = client.send(request())
        client.close()
        enough.set()
    assert answer == Answer(False, message="HTTP 403 Forbidden")


def test_after_a_timeout_the_next_request_has_a_new_connection(server: OtlpServer) -> None:
    server.script(Reply(hang=True), Reply(trickle_s=1.0), Reply())
    with Sender(server) as client:
        assert client.send(request(), SHORT_S).retry
        assert client.send(request(), SHORT_S).retry
        assert client.send(request(), 10.0).accepted
    assert len({received.port for received in server.received}) == 3


def test_no_thread_outlives_its_request(server: OtlpServer) -> None:
    server.script(Reply(hang=True), Reply(trickle_s=1.0), Reply())
    with Sender(server) as client:
        for _ in range(3):
            client.send(request(), 0.2)
    for thread in threading.enumerate():
        if thread.name == "tracekit-otlp":
            thread.join(10)
            assert not thread.is_alive()


def test_a_name_that_takes_long_to_look_up_holds_one_request_and_one_thread(
    monkeypatch: pytest.MonkeyPatch, server: OtlpServer
) -> None:
    answered = threading.Event()
    real = socket.getaddrinfo

    def slow(*arguments: Any, **options: Any) -> Any:
        answered.wait(10)
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Sender(server) as client:
        assert client.send(request(), 0.1).message == "no answer within 0.1 s"
        for _ in range(3):
            busy = client.send(request(), 0.1)
            assert (busy.retry, busy.message) == (True, "an earlier request has not ended")
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("tracekit-otlp") == 1
        answered.set()
        assert client.send(request(), 10.0).accepted
    assert len(server.received) == 1


def test_closing_ends_what_is_on_its_way(server: OtlpServer) -> None:
    server.script(Reply(hang=True))
    sender = Sender(server, timeout_s=600.0)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(sender.client.send(request())))
    thread.start()
    while not server.received:
        thread.join(0.01)
    sender.client.close()
    thread.join(10)
    assert answers
    assert (answers[0].accepted, answers[0].retry) == (False, True)
    assert sender.client.send(request()) == Answer(
        False, message="the client was closed", retry=True
    )
    sender.client.close()
    assert len(server.received) == 1


def test_a_client_closed_in_the_middle_of_an_answer_does_not_judge_it(server: OtlpServer) -> None:
    """Half a status line is not a server that does not speak HTTP."""
    server.script(Reply(trickle_s=0.02, body=bytes(1000)))
    sender = Sender(server, timeout_s=600.0)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(sender.client.send(request())))
    thread.start()
    while not server.received:
        thread.join(0.01)
    sender.client.close()
    thread.join(10)
    assert answers == [Answer(False, message="the client was closed", retry=True)]


def test_nobody_listening_may_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = connect(Settings(f"http://127.0.0.1:{port}/v1/traces"), "traces")
    answer = client.send(request())
    client.close()
    assert answer == Answer(False, message="Connection refused", retry=True)


def test_a_name_that_is_not_known_may_be_later() -> None:
    client = connect(Settings("http://collector.invalid:4318/v1/traces"), "traces")
    answer = client.send(request())
    client.close()
    assert not answer.accepted
    assert answer.retry


def test_a_connection_closed_without_an_answer_may_be_tried_again(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(raw=b""))
    assert (answer.accepted, answer.retry) == (False, True)
    assert answer.message == "Remote end closed connection without response"


@pytest.mark.parametrize(
    "raw", [b"220 smtp ready\r\n", b"\x00\x00\x12\x04", b"HTTP/1.1 two\r\n\r\n"]
)
def test_what_does_not_speak_http_is_left_alone(server: OtlpServer, raw: bytes) -> None:
    answer = answer_to(server, Reply(raw=raw))
    assert answer == Answer(False, message="the server does not speak HTTP")


def test_a_request_that_no_server_has_to_take_is_not_sent(server: OtlpServer) -> None:
    with Sender(server) as client:
        answer = client.send(bytes((64 << 20) + 1))
    assert (answer.accepted, answer.retry) == (False, False)
    assert answer.message == "not sent: 64.0 MiB are more than the 64 MiB allowed"
    assert server.received == []


def test_a_server_that_refuses_before_it_read_everything_is_understood() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        while connection.recv(1 << 16):
            pass

    with by_hand(refuse) as endpoint:
        client = connect(Settings(endpoint), "traces")
        answer = client.send(bytes(8 << 20))
        client.close()
    assert answer == Answer(False, message="HTTP 413 Too Large")


def test_a_server_of_a_trusted_authority_is_spoken_to(certificates: Certificates) -> None:
    with OtlpServer(tls=certificates.server_context()) as server:
        server.script(Reply(), Reply(trickle_s=0.5), Reply())
        with Sender(server, certificate=certificates.authority) as client:
            assert client.send(request()).accepted
            assert client.send(request(), SHORT_S).message == "no answer within 0.5 s"
            assert client.send(request()).accepted
    assert [received.body for received in server.received] == [request()] * 3


def test_a_server_of_another_authority_is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path)
    with OtlpServer(tls=certificates.server_context()) as server:
        for authority in (None, other.authority):
            answer = answer_to(server, certificate=authority)
            assert (answer.accepted, answer.retry) == (False, False)
            assert answer.message.startswith("the server's certificate: ")
    assert server.received == []


def test_a_certificate_for_another_name_is_refused(certificates: Certificates) -> None:
    with OtlpServer(tls=certificates.server_context()) as server:
        endpoint = f"https://127.0.0.2:{server.port}/v1/traces"
        context = replace(read_settings("traces", {}, endpoint=endpoint))
        client = connect(replace(context, certificate=certificates.authority), "traces")
        answer = client.send(request())
        client.close()
    assert not answer.accepted
    assert server.received == []


def test_a_server_may_ask_who_we_are(certificates: Certificates) -> None:
    with OtlpServer(tls=certificates.server_context(asks=True)) as server:
        trusted = {"certificate": certificates.authority}
        assert not answer_to(server, **trusted).accepted
        assert server.received == []
        own = {
            "client_certificate": certificates.certificate("client"),
            "client_key": certificates.key("client"),
        }
        assert answer_to(server, **trusted, **own).accepted


def test_tls_to_a_server_without_it_is_refused(server: OtlpServer) -> None:
    endpoint = server.endpoint.replace("http:", "https:") + "/v1/traces"
    server.script(Reply())
    client = connect(Settings(endpoint, secure=True), "traces")
    answer = client.send(request())
    client.close()
    assert (answer.accepted, answer.retry) == (False, False)
    assert answer.message.startswith("TLS: ")


def test_a_proxy_passes_a_plain_request_on(server: OtlpServer) -> None:
    environ = {"HTTP_PROXY": f"http://me:hunter%202@localhost:{server.port}"}
    settings = read_settings("traces", environ, endpoint="http://collector.invalid:4318")
    client = connect(settings, "traces")
    assert client.send(request()).accepted
    client.close()
    (received,) = server.received
    assert received.path == "http://collector.invalid:4318/v1/traces"
    assert received.headers["host"] == "collector.invalid:4318"
    password = base64.b64encode(b"me:hunter 2").decode()
    assert received.headers["proxy-authorization"] == f"Basic {password}"


def test_a_proxy_gives_a_tunnel_to_tls(certificates: Certificates, server: OtlpServer) -> None:
    with OtlpServer(tls=certificates.server_context()) as target:
        sender = Sender(
            target,
            certificate=certificates.authority,
            headers={"authorization": "Bearer abc"},
            proxy=f"http://me:secret@localhost:{server.port}",
        )
        with sender as client:
            assert [client.send(request()) for _ in range(2)] == [Answer(True)] * 2
    assert [received.path for received in target.received] == ["/v1/traces"] * 2
    (tunnel,) = server.tunnels
    names = {name.lower() for name in tunnel}
    assert "proxy-authorization" in names
    assert "authorization" not in names


@pytest.mark.parametrize(("status", "retry"), [(407, False), (403, False), (503, True)])
def test_a_proxy_that_gives_no_tunnel_decides_like_a_server(
    server: OtlpServer, status: int, retry: bool
) -> None:
    server.script(Reply(status))
    settings = read_settings(
        "traces", {"HTTPS_PROXY": server.endpoint}, endpoint="https://collector.invalid"
    )
    client = connect(settings, "traces")
    answer = client.send(request())
    client.close()
    assert (answer.accepted, answer.retry) == (False, retry)
    assert answer.message.startswith(f"the proxy: Tunnel connection failed: {status}")


def test_a_proxy_that_trickles_does_not_hold_longer_than_the_timeout(server: OtlpServer) -> None:
    server.script(Reply(trickle_s=0.05, body=bytes(1000)))
    settings = read_settings(
        "traces", {"HTTPS_PROXY": server.endpoint}, endpoint="https://collector.invalid"
    )
    client = connect(replace(settings, timeout_s=SHORT_S), "traces")
    answer = client.send(request())
    client.close()
    assert answer == Answer(False, message="no answer within 0.5 s", retry=True)


def test_a_proxy_that_is_not_there_may_come(server: OtlpServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert answer_to(server, proxy=proxy) == Answer(
        False, message="the proxy: Connection refused", retry=True
    )


def test_a_thread_that_cannot_be_had_is_done_without(
    monkeypatch: pytest.MonkeyPatch, server: OtlpServer
) -> None:
    with Sender(server) as client:
        assert client.send(request()).accepted
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "tracekit-otlp":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert client.send(request()).accepted


def test_threads_take_turns(server: OtlpServer) -> None:
    with Sender(server) as client:
        answers: list[Answer] = []
        threads = [
            threading.Thread(target=lambda: answers.append(client.send(request())))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [Answer(True)] * 8


def test_no_connection_is_left_open(server: OtlpServer, certificates: Certificates) -> None:
    """Unclosed sockets are warnings, and warnings are errors: collect them here."""
    replies = [
        *(Reply(), Reply(500, TEXT, b"x"), Reply(endless=True), Reply(body=bytes(99), cut_after=3)),
        *(Reply(hang=True), Reply(raw=b""), Reply(302, {"Location": "/"})),
    ]
    for reply in replies:
        answer_to(server, reply, timeout_s=SHORT_S)
    with OtlpServer(tls=certificates.server_context()) as secure:
        for reply in replies:
            answer_to(secure, reply, timeout_s=1.0, certificate=certificates.authority)
    gc.collect()
