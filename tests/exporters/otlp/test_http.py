"""What a client makes of every answer over HTTP, from a real server that does what servers do."""

from __future__ import annotations

import gzip
import socket
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.senders import TEXT, Sender, answer_to, by_hand
from tests.exporters.otlp.server import OtlpServer, Reply, partial, request
from tests.exporters.otlp.statuses import status_bytes
from tracekit.exporters._otlp.client import Answer, connect
from tracekit.exporters._otlp.settings import Settings


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
