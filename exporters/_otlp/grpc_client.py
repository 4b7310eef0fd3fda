"""OTLP over gRPC: requests that are bytes already, on one channel.

Not for a process that forks: gRPC's threads do not survive it.
"""

from __future__ import annotations

from typing import Any

from tracekit.errors import MissingDependency
from tracekit.exporters._otlp.answer import (
    LARGEST_ANSWER,
    LARGEST_REQUEST,
    LONGEST_PAUSE_S,
    Answer,
    bounded,
    late,
    reader,
    too_large,
    too_long,
    words,
)
from tracekit.exporters._otlp.settings import Settings, Signal
from tracekit.exporters._otlp.status import read_status
from tracekit.exporters._otlp.version import USER_AGENT

__all__ = ["GrpcClient"]

_METHODS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_RETRIED = {
    *("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"),
}
_RETRIED_WHEN_ASKED = "RESOURCE_EXHAUSTED"
_TOO_LONG = "CLIENT: Received message larger than max"
"""What gRPC makes of a success whose message is longer than we take."""
_DETAILS = "grpc-status-details-bin"
_FRAME = 1 << 16
"""Room for what the channel adds to a message."""


class GrpcClient:
    """A ``Client`` for grpc.

    Raises ``MissingDependency``, and ``OSError`` where a certificate vanished since the settings
    were read.
    """

    def __init__(self, settings: Settings, signal: Signal) -> None:
        try:
            import grpc
        except ImportError as error:
            raise MissingDependency("grpcio", "otlp-grpc") from error
        self._settings = settings
        self._metadata = tuple(settings.headers.items())
        self._secrets = tuple(settings.headers.values())
        self._read = reader(signal, self._secrets)
        self._error = grpc.RpcError
        self._closed = False
        gzip = settings.compression == "gzip"
        self._channel = _channel(grpc, settings)
        self._export = self._channel.unary_unary(_METHODS[signal])
        self._compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression

    def send(self, request: bytes, timeout_s: float | None = None) -> Answer:
        """Try once, for no longer than the timeout in all; never raises."""
        limit = bounded(self._settings.timeout_s if timeout_s is None else timeout_s)
        refusal = too_large(request)
        if refusal is not None:
            return refusal
        if not limit:
            return late(limit)
        try:
            return self._try(request, limit)
        except Exception as error:
            return Answer(False, message=words(error, self._secrets), retry=self._closed)

    def close(self) -> None:
        """Close the channel; a request on its way gets its answer at once: it may be retried."""
        self._closed = True
        self._channel.close()

    def _try(self, request: bytes, limit_s: float) -> Answer:
        try:
            body = self._export(
                request, timeout=limit_s, metadata=self._metadata, compression=self._compression
            )
        except self._error as error:
            return self._refusal(error)
        return self._read(body, False)

    def _refusal(self, error: Any) -> Answer:
        code, details = error.code().name, error.details() or ""
        if _TOO_LONG in details:
            return too_long()
        after_s = _after_s(error.trailing_metadata() or ())
        retry = code in _RETRIED or (code == _RETRIED_WHEN_ASKED and after_s is not None)
        said = words(details, self._secrets)
        return Answer(
            False,
            message=words(f"gRPC {code}: {said}" if said else f"gRPC {code}"),
            retry=retry,
            after_s=after_s if retry else None,
        )


def _channel(grpc: Any, settings: Settings) -> Any:
    options = [
        ("grpc.primary_user_agent", USER_AGENT),
        ("grpc.max_send_message_length", LARGEST_REQUEST + _FRAME),
        ("grpc.max_receive_message_length", LARGEST_ANSWER),
        ("grpc.enable_retries", 0),
        # Another client's failures do not hold up ours, and after ours we soon look again.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 10_000),
    ]
    if not settings.secure:
        return grpc.insecure_channel(settings.endpoint, options=options)
    own, key = settings.client_certificate, settings.client_key or settings.client_certificate
    credentials = grpc.ssl_channel_credentials(
        settings.certificate.read_bytes() if settings.certificate else None,
        key.read_bytes() if own and key else None,
        own.read_bytes() if own else None,
    )
    return grpc.secure_channel(settings.endpoint, credentials, options=options)


def _after_s(metadata: Any) -> float | None:
    """The pause that the details of an error ask for, in seconds."""
    details = next((value for key, value in metadata if key == _DETAILS), b"")
    try:
        after_s = read_status(details).after_s
    except ValueError:
        return None
    return None if after_s is None else min(after_s, LONGEST_PAUSE_S)
