"""Requests over TLS and through proxies, to real ones."""

from __future__ import annotations

import base64
import gc
import socket
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.certificates import Certificates, make_certificates
from tests.exporters.otlp.senders import SHORT_S, TEXT, Sender, answer_to
from tests.exporters.otlp.server import OtlpServer, Reply, request
from tracekit.exporters._otlp.client import Answer, connect
from tracekit.exporters._otlp.settings import Settings, read_settings


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
