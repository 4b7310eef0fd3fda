"""A request is delivered once a server takes it, and nothing holds whoever wants to stop."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.server import OtlpServer, Reply, partial, request
from tracekit.errors import MissingDependency
from tracekit.exporters._otlp.client import Answer, Client, connect, deliver
from tracekit.exporters._otlp.settings import Settings, read_settings

BUSY = Reply(503)


@pytest.fixture
def client(server: OtlpServer) -> Iterator[Client]:
    client = connect(read_settings("traces", {}, endpoint=server.endpoint), "traces")
    yield client
    client.close()


class Sleeper:
    """Counts instead of sleeping; ``pauses`` are those between two requests."""

    def __init__(self, server: OtlpServer) -> None:
        self._server = server
        self.pauses: dict[int, float] = {}
        self.longest = 0.0

    def __call__(self, seconds: float) -> None:
        tries = len(self._server.received)
        self.pauses[tries] = self.pauses.get(tries, 0.0) + seconds
        self.longest = max(self.longest, seconds)


def never() -> bool:
    return False


def test_a_request_is_sent_until_it_is_accepted(server: OtlpServer, client: Client) -> None:
    server.script(BUSY, Reply(429), Reply(cut_after=0, body=b"x"), Reply(body=partial(2, "old")))
    sleeper = Sleeper(server)
    assert deliver(client, request(), never, sleeper) == Answer(True, 2, "old")
    assert [received.body for received in server.received] == [request()] * 4
    assert list(sleeper.pauses) == [1, 2, 3]


def test_a_refusal_for_good_is_the_end(server: OtlpServer, client: Client) -> None:
    server.script(BUSY, Reply(400))
    answer = deliver(client, request(), never, Sleeper(server))
    assert (answer.accepted, answer.retry, len(server.received)) == (False, False, 2)


def test_pauses_grow_from_one_second_to_thirty(server: OtlpServer, client: Client) -> None:
    server.script(*[BUSY] * 60)
    sleeper = Sleeper(server)
    assert deliver(client, request(), never, sleeper).accepted
    pauses = list(sleeper.pauses.values())
    assert len(pauses) == 60
    assert all(0.999 <= pause <= 30.001 for pause in pauses)
    assert pauses[0] < 3.001
    assert max(pauses) > 15
    assert len(set(pauses)) > 10


def test_a_server_that_asks_for_a_pause_gets_it(server: OtlpServer, client: Client) -> None:
    server.script(Reply(503, {"Retry-After": "200"}), Reply(503, {"Retry-After": "0"}))
    sleeper = Sleeper(server)
    assert deliver(client, request(), never, sleeper).accepted
    assert 199.9 < sleeper.pauses[1] < 220.1
    assert sleeper.pauses[2] > 0.999


def test_a_pause_is_slept_in_pieces_so_that_giving_up_is_soon(
    server: OtlpServer, client: Client
) -> None:
    server.script(Reply(503, {"Retry-After": "300"}))
    naps: list[float] = []
    answer = deliver(client, request(), lambda: len(naps) >= 3, naps.append)
    assert (answer.accepted, answer.retry, answer.after_s) == (False, True, 300.0)
    assert len(naps) == 3
    assert max(naps) <= 0.2
    assert len(server.received) == 1


def test_whoever_gives_up_at_once_sends_nothing(server: OtlpServer, client: Client) -> None:
    answer = deliver(client, request(), lambda: True, Sleeper(server))
    assert answer == Answer(False, message="given up before the first try", retry=True)
    assert server.received == []


def test_a_delivery_ends_when_the_client_is_closed(server: OtlpServer, client: Client) -> None:
    server.script(Reply(hang=True))
    stop = threading.Event()
    answers: list[Answer] = []

    def run() -> None:
        answers.append(deliver(client, request(), stop.is_set, lambda s: None))

    thread = threading.Thread(target=run)
    thread.start()
    while not server.received:
        thread.join(0.01)
    stop.set()
    client.close()
    thread.join(10)
    assert answers
    assert answers[0].retry


def test_a_sleep_that_is_interrupted_ends_the_delivery(server: OtlpServer, client: Client) -> None:
    server.script(BUSY)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deliver(client, request(), never, interrupt)


@pytest.mark.parametrize(
    ("settings", "module", "package"),
    [
        (Settings("http://c/"), "urllib3", "urllib3"),
        (Settings("c:1", "grpc"), "grpc", "grpcio"),
        (Settings("c:1", "grpc"), "opentelemetry.proto.collector.trace.v1", "opentelemetry-proto"),
    ],
)
def test_what_is_not_installed_is_said_before_anything_is_sent(
    settings: Settings, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith((f"{module}.", "tracekit.exporters._otlp.http_client")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=f"^{package} is not installed: pip install"):
        connect(settings, "traces")
