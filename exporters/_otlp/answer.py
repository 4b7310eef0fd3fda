"""What came of a request: one value for both protocols, and the words in it made safe to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from tracekit.errors import MissingDependency
from tracekit.exporters._otlp.settings import Signal

__all__ = [
    "LARGEST_ANSWER",
    "LARGEST_REQUEST",
    "LONGEST_PAUSE_S",
    "Answer",
    "Client",
    "Reader",
    "bounded",
    "late",
    "reader",
    "too_large",
    "too_long",
    "words",
]

LARGEST_REQUEST = 64 << 20
"""Bytes, before compression; the protocol's limit."""
LARGEST_ANSWER = 4 << 20
"""Bytes; the protocol's limit."""
LONGEST_PAUSE_S = 300.0
"""However long a server asks us to wait."""

_LONGEST_TRY_S = 24 * 3600.0
_LONGEST_MESSAGE = 200
_SHORTEST_SECRET = 6
_SIZES = {"traces": "rejected_spans", "metrics": "rejected_data_points"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    accepted: bool
    """The server took it, perhaps in part."""
    rejected: int = 0
    """How many spans or data points it refused for good though it took the request."""
    message: str = ""
    """What the server or the socket said: one line, at most 200 characters, nothing secret."""
    retry: bool = False
    """Whether it may be sent again."""
    after_s: float | None = None
    """Not before so many seconds, if the server said so."""


class Client(Protocol):
    """A connection to one endpoint for one signal.

    Any thread may use it, one at a time does. A process that was forked makes its own.
    """

    def send(self, request: bytes, timeout_s: float | None = None) -> Answer:
        """Try once, for no longer than the timeout in all; never raises."""

    def close(self) -> None:
        """End what is on its way, which may then be sent again by another client."""


Reader = Callable[[bytes, bool], Answer]
"""Reads the body of a success; the flag tells that it is JSON."""


def reader(signal: Signal, secrets: Sequence[str]) -> Reader:
    """What reads a server's answers to a signal, and masks the secrets that it repeats.

    Raises ``MissingDependency``.
    """
    new = _response_class(signal)
    rejected = _SIZES[signal]

    def read(body: bytes, is_json: bool) -> Answer:
        try:
            if is_json:
                count, message = _read_json(body, rejected)
            else:
                part = new.FromString(body).partial_success
                count, message = getattr(part, rejected), part.error_message
        except Exception as error:  # protobuf's, which differ between its versions
            text = f"accepted, but the answer is unreadable: {error}"
            return Answer(True, message=words(text, secrets))
        return Answer(True, max(count, 0), words(message, secrets))

    return read


def _response_class(signal: Signal) -> Any:
    try:
        if signal == "traces":
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
                ExportTraceServiceResponse as Response,
            )
        else:
            from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
                ExportMetricsServiceResponse as Response,
            )
    except ImportError as error:
        raise MissingDependency("opentelemetry-proto", "otlp") from error
    return Response


def _read_json(body: bytes, rejected: str) -> tuple[int, str]:
    """Some servers answer protobuf with JSON, in which 64-bit numbers are texts."""
    head, *tail = rejected.split("_")
    part = (orjson.loads(body) if body.strip() else {}).get("partialSuccess") or {}
    count = part.get(head + "".join(map(str.capitalize, tail))) or 0
    return int(count), part.get("errorMessage") or ""


def too_large(request: bytes) -> Answer | None:
    """The answer to a request that no server has to take; None: it can be sent."""
    if len(request) <= LARGEST_REQUEST:
        return None
    size, limit = len(request) / (1 << 20), LARGEST_REQUEST >> 20
    return Answer(False, message=f"not sent: {size:.1f} MiB are more than the {limit} MiB allowed")


def bounded(timeout_s: float) -> float:
    """A timeout that locks and clocks can take; below 0 and what is no number are 0."""
    return min(timeout_s, _LONGEST_TRY_S) if timeout_s > 0 else 0.0


def too_long() -> Answer:
    """The answer where the server's was a success that nobody wants to read."""
    return Answer(True, message=f"the answer is longer than {LARGEST_ANSWER >> 20} MiB")


def late(limit_s: float) -> Answer:
    """The answer where none came in time."""
    return Answer(False, message=f"no answer within {limit_s:g} s", retry=True)


def words(said: object, secrets: Sequence[str] = ()) -> str:
    """What somebody said as one line that can be shown anywhere, without our own secrets in it."""
    text = str(said)
    for secret in secrets:
        # "Bearer abc": a server may repeat the second word alone.
        for piece in (secret, secret.rpartition(" ")[2]):
            if len(piece) >= _SHORTEST_SECRET:
                text = text.replace(piece, "***")
    text = text[: 20 * _LONGEST_MESSAGE]
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > _LONGEST_MESSAGE:
        text = text[: _LONGEST_MESSAGE - 1] + "…"
    return text
