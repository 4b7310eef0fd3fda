"""No server, however slow, silent or stuck, holds a request longer than its time."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.senders import SHORT_S, Sender, answer_to, by_hand
from tests.exporters.otlp.server import OtlpServer, Reply, partial, request
from tracekit.exporters._otlp import http_client
from tracekit.exporters._otlp.client import Answer, connect
from tracekit.exporters._otlp.settings import Settings


def test_a_server_that_says_nothing_is_waited_for_until_the_timeout(server: OtlpServer) -> None:
    answer = answer_to(server, Reply(hang=True), timeout_s=SHORT_S)
    assert answer == Answer(False, message="no answer within 0.5 s", retry=True)
    assert server.ended.wait(10)


def test_the_socket_s_timeout_is_no_other_answer_when_it_comes_first(
    server: OtlpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end at one moment; here who waits for the request's end is held up by a second."""
    known = http_client._Attempt

    class Patient(known):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            wait = self.known.wait
            self.known.wait = lambda left: wait(left + 1.0)

    monkeypatch.setattr(http_client, "_Attempt", Patient)
    answer = answer_to(server, Reply(hang=True), timeout_s=SHORT_S)
    assert answer == Answer(False, message="no answer within 0.5 s", retry=True)


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
        client = connect(Settings(endpoint, timeout_s=3.0), "traces")
        answer = client.send(request())
        client.close()
        enough.set()
    assert answer == Answer(False, message="HTTP 403 Forbidden")


def test_after_a_timeout_the_next_request_has_a_new_connection(server: OtlpServer) -> None:
    server.script(Reply(hang=True), Reply(trickle_s=5.0), Reply())
    with Sender(server) as client:
        for _ in range(2):
            assert client.send(request(), 2.0).retry
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
