"""Follows a run that is under way, and sends its metrics."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from itertools import chain

from tracekit.exporters._live.run import LiveRun, Source
from tracekit.exporters._metrics.settings import MetricSettings
from tracekit.exporters._otel.resource import given_resource
from tracekit.exporters._values import values
from tracekit.exporters.otel_metrics import RunMetrics, Sent

__all__ = ["LiveMetrics"]

_LOOK_EVERY_S = 1.0


class LiveMetrics:
    """Follows a run that is under way, in a thread of its own, and sends its metrics.

    It reads the parts by itself: a backend of traces that is away does not hold the metrics up.
    """

    def __init__(self, source: Source, settings: MetricSettings) -> None:
        self._live = LiveRun(source, given_resource())
        self._settings = settings
        self._metrics: RunMetrics | None = None
        self._errors, self._message = 0, ""
        self._ending = threading.Event()
        self._deadline = math.inf
        self._thread = threading.Thread(target=self._run, name="tracekit-metrics", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def end(self, bound_s: float) -> None:
        """Send what is left, for so long at most; all parts are written. Does not wait."""
        self._deadline = time.monotonic() + bound_s
        self._ending.set()

    def wait(self) -> Sent:
        """Wait until that is over, and report."""
        self._thread.join(max(self._deadline - time.monotonic(), 0.0) + 1.0)
        nothing = Sent(self._settings.otlp.target, finished=not self._thread.is_alive())
        sent = nothing if self._metrics is None else self._metrics.sent
        unread = self._live.unread
        if self._errors or unread:
            sent.errors = self._errors + len(unread)
            sent.message = self._message or unread[-1]
        return sent

    def _run(self) -> None:
        while not self._ending.is_set():
            self._guarded(self._serve)
            self._ending.wait(_LOOK_EVERY_S)
        self._guarded(self._serve)
        if self._metrics is not None:
            self._metrics.close(self._deadline)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Nothing that happens here ends the agent."""
        try:
            work()
        except Exception as error:
            self._errors += 1
            self._message = f"{type(error).__name__}: {error}"[:200]

    def _serve(self) -> None:
        found = self._live.look(self._ending.is_set())
        metrics = self._metrics
        if metrics is None:
            metrics = self._metrics = RunMetrics(self._settings, self._live.resources)
        for new in found:
            facts = (values(new.facts[column]) for column in ("rank", "name", "value"))
            metrics.learn(zip(*facts, strict=True))
        for _, spans, events in chain(self._live.late(), self._live.steps()):
            if time.monotonic() >= self._deadline:
                break
            metrics.step(spans, events)
