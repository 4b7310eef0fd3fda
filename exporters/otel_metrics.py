"""Metrics of a run while it trains, for a panel: one stream a host, from its agent's parts.

Needs the extra ``otlp``. What a metric means stands in ``docs/opentelemetry-metrics.md``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tracekit.errors import MissingDependency
from tracekit.exporters._metrics.exporter import SendingExporter, Sent
from tracekit.exporters._metrics.settings import MetricSettings
from tracekit.exporters._metrics.step_times import StepTimes, step_times
from tracekit.exporters._otel import names
from tracekit.exporters._otel.resource import Resources
from tracekit.exporters._otlp.client import connect
from tracekit.exporters._otlp.version import VERSION
from tracekit.exporters._values import values
from tracekit.model import CLASSES

try:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
    from opentelemetry.sdk.resources import Resource
except ImportError as error:
    raise MissingDependency("opentelemetry-sdk", "otlp") from error

__all__ = ["DURATIONS_S", "WAITS_S", "RunMetrics", "Sent"]

DURATIONS_S = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    *(10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0, 200.0, 300.0, 600.0),
)
"""Upper bounds of the buckets of a step's duration, six in a decade."""
WAITS_S = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 600.0),
)
_BUCKETS = {"tracekit.step.duration": DURATIONS_S, "tracekit.wait": WAITS_S}


class _Rank:
    """The running totals of a rank, as they are shown."""

    def __init__(self) -> None:
        self.steps = 0
        self.uncounted = 0
        """Steps before its batch size was known."""
        self.batch: float | None = None
        self.samples = 0.0
        self.loss: float | None = None
        self.nonfinite = 0
        self.memory: float | None = None
        self.classes = np.zeros(len(CLASSES), np.int64)
        self.shares: list[float] | None = None
        self.has_trained = False
        self._held: StepTimes | None = None

    def ended(self, times: StepTimes) -> list[StepTimes]:
        """A step is over; returns those that count.

        What tiling leaves after the training is no step: one in which nothing happens is held
        back until another follows.
        """
        counted = [] if self._held is None else [self._held]
        self._held = None
        if times.trained or not self.has_trained:
            self.has_trained = times.trained
            counted.append(times)
        else:
            self._held = times
        for one in counted:
            self._count(one)
        return counted

    def _count(self, times: StepTimes) -> None:
        self.steps += 1
        self.uncounted += 1
        self._count_samples()
        if times.classes is not None:
            self.classes += times.classes

    def learn_batch(self, size: float) -> None:
        """So many samples a step from now on, and in those before of which it was not known."""
        self.batch = size
        self._count_samples()

    def _count_samples(self) -> None:
        if self.batch is not None:
            self.samples += self.batch * self.uncounted
            self.uncounted = 0

    def taken_shares(self) -> list[float] | None:
        """Parts of the steps since the last time; those of then where there was none since."""
        whole = int(self.classes.sum())
        if whole:
            self.shares = (self.classes / whole).tolist()
            self.classes[:] = 0
        return self.shares


class RunMetrics:
    """The metrics of one host's ranks, sent every so often by a thread of the SDK.

    ``resources`` say who they are when the first step comes; before that nothing is sent.
    """

    def __init__(self, settings: MetricSettings, resources: Resources) -> None:
        self._settings, self._resources = settings, resources
        self._exporter = SendingExporter(settings, connect(settings.otlp, "metrics"))
        self._provider: MeterProvider | None = None
        self._is_broken = False
        self._ranks: dict[int, _Rank] = {}
        self._lock = threading.Lock()
        self._durations: Any = None
        self._waits: Any = None

    @property
    def sent(self) -> Sent:
        """What became of them so far."""
        return self._exporter.sent

    def learn(self, facts: Iterable[tuple[int | None, str, str]]) -> None:
        """Take what facts say: rank, name, JSON."""
        for rank, name, text in facts:
            if rank is not None and name == "batch_size":
                size = _number(text)
                if size is not None:
                    with self._lock:
                        self._ranks.setdefault(rank, _Rank()).learn_batch(size)

    def step(self, spans: pa.Table, events: pa.Table) -> None:
        """Take a step: the spans and events of all ranks of the host that have it."""
        found = step_times(spans, self._resources.domain)
        told = _told(events)
        if self._is_broken or not (found or told):
            return
        if self._provider is None:
            self._begin()
        recorded = []
        with self._lock:
            for rank, name, value in told:
                self._take(self._ranks.setdefault(rank, _Rank()), name, value)
            for rank, times in found.items():
                counted = self._ranks.setdefault(rank, _Rank()).ended(times)
                recorded += [(rank, one) for one in counted]
        for rank, times in recorded:
            of = {names.RANK: rank}
            self._durations.record(times.wall / 1e9, of)
            if times.wait is not None:
                self._waits.record(times.wait / 1e9, of)

    def _take(self, known: _Rank, name: str, value: float) -> None:
        if name == "memory":
            known.memory = value if math.isfinite(value) else known.memory
        elif math.isfinite(value):
            known.loss = value
        else:
            known.nonfinite += 1

    def close(self, deadline: float) -> None:
        """Send the last numbers, until a time of the monotonic clock; never longer."""
        self._exporter.deadline = deadline
        if self._provider is None:
            self.sent.finished = True
        else:
            # The SDK's own shutdown waits for whatever an exporter does.
            closing = threading.Thread(target=self._shut_down, name="tracekit-flush", daemon=True)
            closing.start()
            closing.join(max(deadline - time.monotonic(), 0.0))
            self._exporter.client.close()  # ends a request that is on its way
            closing.join(0.5)
        self._exporter.client.close()

    def _shut_down(self) -> None:
        assert self._provider is not None
        try:
            left_s = max(self._exporter.deadline - time.monotonic(), 0.0)
            self._provider.shutdown(timeout_millis=1e3 * left_s)
            self.sent.finished = time.monotonic() < self._exporter.deadline
        except Exception as error:
            self.sent.message = f"{type(error).__name__}: {error}"[:200]

    # What the SDK asks for

    def _begin(self) -> None:
        reader = PeriodicExportingMetricReader(
            self._exporter,
            export_interval_millis=1e3 * self._settings.interval_s,
            export_timeout_millis=1e3 * self._settings.timeout_s,
        )
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in _BUCKETS.items()
        ]
        resource = Resource(dict(self._resources.of_host()))
        try:
            self._provider = MeterProvider([reader], resource, shutdown_on_exit=False, views=views)
        except Exception:
            self._is_broken = True  # by a setting of the SDK; the next step would find it, too
            reader.shutdown(timeout_millis=0)
            raise
        meter = self._provider.get_meter(names.SCOPE, VERSION)

        def make(kind: str, name: str, unit: str, read: Any = None) -> Any:
            given = {} if read is None else {"callbacks": [self._callback(read)]}
            return getattr(meter, f"create_{kind}")(
                name, unit=unit, description=names.METRICS[name], **given
            )

        self._durations = make("histogram", "tracekit.step.duration", "s")
        self._waits = make("histogram", "tracekit.wait", "s")
        make("observable_counter", "tracekit.steps", "{step}", lambda one: one.steps)
        make("observable_counter", "tracekit.samples", "{sample}", _samples)
        make("observable_gauge", "tracekit.loss", "", lambda one: one.loss)
        make("observable_counter", "tracekit.loss.nonfinite", "{loss}", lambda one: one.nonfinite)
        make("observable_gauge", "tracekit.memory", "By", lambda one: one.memory)
        meter.create_observable_gauge(
            "tracekit.step.share",
            [self._shares],
            unit="1",
            description=names.METRICS["tracekit.step.share"],
        )

    def _callback(
        self, read: Callable[[_Rank], float | None]
    ) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(_: CallbackOptions) -> list[Observation]:
            with self._lock:
                found = [(rank, read(known)) for rank, known in self._ranks.items()]
            return [
                Observation(value, {names.RANK: rank}) for rank, value in found if value is not None
            ]

        return observe

    def _shares(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            found = [(rank, known.taken_shares()) for rank, known in self._ranks.items()]
        return [
            Observation(share, {names.RANK: rank, names.CLASS: name})
            for rank, shares in found
            if shares is not None
            for name, share in zip(CLASSES, shares, strict=True)
        ]


def _samples(one: _Rank) -> float | None:
    return None if one.batch is None else one.samples


def _number(text: str) -> float | None:
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return value if right else None


def _told(events: pa.Table) -> list[tuple[int, str, float]]:
    """Losses and memory of the step, in the order of each rank's time."""
    columns = (values(events[name]) for name in ("rank", "name", "value"))
    return [
        (rank, name, value)
        for rank, name, value in zip(*columns, strict=True)
        if name in ("loss", "memory") and value is not None
    ]
