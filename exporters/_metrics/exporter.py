"""What the metrics of OpenTelemetry's SDK leave by: the same client that sends traces."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from tracekit.errors import MissingDependency
from tracekit.exporters._metrics.settings import MetricSettings
from tracekit.exporters._otlp.client import Client, deliver

try:
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        MetricExporter,
        MetricExportResult,
        MetricsData,
    )
except ImportError as error:
    raise MissingDependency("opentelemetry-sdk", "otlp") from error

__all__ = ["SendingExporter", "Sent"]

_DELTA = {
    "cumulative": (),
    "delta": (Counter, ObservableCounter, Histogram),
    "lowmemory": (Counter, Histogram),
}
"""What begins anew with each export."""


@dataclass(slots=True)
class Sent:
    """What became of the metrics."""

    endpoint: str
    requests: int = 0
    """Taken by the server."""
    rejected: int = 0
    """Data points of those that it did not take."""
    refused: int = 0
    """Requests that it refused for good."""
    late: int = 0
    """Requests that nobody took in time; with cumulative temporality the next one makes it good."""
    lost: int = 0
    """Those of them that no other makes good."""
    errors: int = 0
    """Of ours: parts and steps that could not be measured."""
    message: str = ""
    """The last thing that went wrong."""
    finished: bool = False
    """Whether the last numbers were sent, taken or not."""

    @property
    def whole(self) -> bool:
        """Whether the server has all numbers."""
        missing = self.refused or self.rejected or self.lost or self.errors
        return self.finished and not missing


class SendingExporter(MetricExporter):
    """Sends as traces are sent, until the timeout, or until ``deadline`` once that is set."""

    def __init__(self, settings: MetricSettings, client: Client) -> None:
        super().__init__(preferred_temporality=_temporality(settings.temporality))
        self.client = client
        self.deadline = math.inf
        self.sent = Sent(settings.otlp.target)
        self._timeout_s = settings.timeout_s
        self._forgets = settings.temporality != "cumulative"

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any
    ) -> MetricExportResult:
        until = time.monotonic() + self._timeout_s
        answer = deliver(
            self.client,
            encode_metrics(metrics_data).SerializeToString(),
            lambda: time.monotonic() >= min(until, self.deadline),
            time.sleep,
        )
        sent = self.sent
        sent.message = answer.message or sent.message
        if answer.accepted:
            sent.requests += 1
            sent.rejected += answer.rejected
            return MetricExportResult.SUCCESS
        if answer.retry:
            sent.late += 1
            sent.lost += self._forgets
        else:
            sent.refused += 1
        return MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        self.client.close()


def _temporality(preference: str) -> dict[type, AggregationTemporality]:
    return dict.fromkeys(_DELTA[preference], AggregationTemporality.DELTA)
