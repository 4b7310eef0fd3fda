"""Clients of a test, and servers by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.server import OtlpServer, Reply, request
from tracekit.exporters._otlp.client import Answer, Client, connect
from tracekit.exporters._otlp.settings import Signal, read_settings

__all__ = ["SHORT_S", "TEXT", "Sender", "answer_to", "by_hand"]

TEXT = {"Content-Type": "text/plain"}
SHORT_S = 0.5
"""How long a client waits for what never comes."""


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
