"""A finished run by OTLP: to a server such as Jaeger or Tempo, or into a file of JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from tracekit.errors import MissingDependency, TracekitError
from tracekit.exporters._otel.json_lines import lines
from tracekit.exporters._otel.resource import given_resource
from tracekit.exporters._otel.spans import total
from tracekit.exporters._otel.traces import Traces
from tracekit.exporters._otlp.client import Answer, connect, deliver
from tracekit.exporters._otlp.settings import Settings, read_settings
from tracekit.exporters._otlp.version import VERSION
from tracekit.exporters._records import Choice

__all__ = [
    "Choice",
    "NotDelivered",
    "Sent",
    "Settings",
    "Traces",
    "export",
    "export_json",
    "given_resource",
    "read_settings",
]

GIVE_UP_S = 60.0
FIRST_GIVE_UP_S = 5.0
"""For the first request: who mistyped the address should not wait for it."""


class NotDelivered(TracekitError):
    """A server did not take the spans; the message says why and how many it has."""


@dataclass(slots=True)
class Sent:
    """What a server took."""

    spans: int = 0
    rejected: int = 0
    """Of them, spans that the server refused though it took their request."""
    bytes: int = 0
    """Before compression."""
    message: str = ""
    """The last warning of the server."""


def export(
    traces: Traces,
    settings: Settings,
    *,
    give_up_s: float = GIVE_UP_S,
    progress: Callable[[Sent], None] = lambda sent: None,
) -> Sent:
    """Send the traces, one after the other; a request that fails is sent again for ``give_up_s``.

    Raises ``NotDelivered`` where the server refuses or stays away, ``MissingDependency`` without
    the extra ``otlp``. Sending the same run again is harmless: its spans keep their ids.
    """
    try:
        from tracekit.exporters._otel.proto import requests
    except ImportError as error:
        raise MissingDependency("opentelemetry-proto", "otlp") from error
    sent, first = Sent(), min(give_up_s, FIRST_GIVE_UP_S)
    client = connect(settings, "traces")
    try:
        for portions in traces:
            for request, spans in requests(portions, VERSION):
                end = time.monotonic() + (give_up_s if sent.spans else first)
                answer = deliver(client, request, lambda: time.monotonic() >= end, time.sleep)  # noqa: B023
                if not answer.accepted:
                    raise NotDelivered(_failure(settings, answer, sent))
                sent.spans += spans
                sent.rejected += answer.rejected
                sent.bytes += len(request)
                sent.message = answer.message or sent.message
                progress(sent)
    finally:
        client.close()
    return sent


def _failure(settings: Settings, answer: Answer, sent: Sent) -> str:
    there = f"; it has {sent.spans:,} spans" if sent.spans else ""
    return f"{settings.target}: {answer.message}{there}"


def export_json(traces: Traces, file: BinaryIO) -> int:
    """Write the traces as the collector's file exporter does; returns the number of spans."""
    spans = 0
    for portions in traces:
        for line in lines(portions, VERSION):
            file.write(line)
        spans += total(portions)
    return spans
