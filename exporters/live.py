"""Live export by OTLP from a node's agent: metrics, and the steps that a rule chooses.

What is exported is read from the parts that the agent writes, so nothing is queued in memory and
nothing is lost while a backend is away. A thread of its own sends: the agent never waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.dataset.coverage import LiveExport
from tracekit.errors import TracekitError
from tracekit.exporters._live.new_parts import Outside
from tracekit.exporters._live.run import LiveRun, Source
from tracekit.exporters._live.sampling import NO_TRACES, Chooser, Rule
from tracekit.exporters._metrics.settings import read_metric_settings
from tracekit.exporters._otel import names
from tracekit.exporters._otel.folding import BUDGET, fit
from tracekit.exporters._otel.resource import given_resource
from tracekit.exporters._otel.spans import OtelEvent, OtelLink, OtelSpan, Portion, Shared, by_rank
from tracekit.exporters._otel.step_traces import (
    ByRank,
    attach,
    events_of,
    is_step,
    nested,
    step_spans,
)
from tracekit.exporters._otlp.client import Client, connect, deliver
from tracekit.exporters._otlp.settings import exporter_of, read_settings
from tracekit.exporters._otlp.version import VERSION

if TYPE_CHECKING:
    from tracekit.exporters._live.metrics import LiveMetrics

__all__ = ["LiveExporter", "Rule", "Signals", "Source", "export_live"]

_LOOK_EVERY_S = 1.0
_MOST_EVENTS = 128
_SPANS_AT_ONCE = 4000


def export_live(source: Source, rule: str) -> Signals:
    """Begin to export to where the standard environment says: traces by a rule, and metrics.

    With the rule ``NO_TRACES`` metrics alone. Raises ``UsageError`` or ``MissingDependency`` where
    that cannot be done; a session has told already of metrics that cannot be sent.
    """
    traces = metrics = None
    if rule != NO_TRACES:
        settings = read_settings("traces")
        client = connect(settings, "traces")
        traces = LiveExporter(source, client, settings.target, Rule.parse(rule), given_resource())
    if exporter_of("metrics") == "otlp":
        with contextlib.suppress(TracekitError):
            from tracekit.exporters._live.metrics import LiveMetrics

            metrics = LiveMetrics(source, read_metric_settings())
    return Signals(traces, metrics)


class Signals:
    """What leaves a host while its ranks train. Neither signal waits for the other."""

    def __init__(self, traces: LiveExporter | None, metrics: LiveMetrics | None) -> None:
        self._traces, self._metrics = traces, metrics
        if traces is not None:
            traces.start()
        if metrics is not None:
            metrics.start()

    def finish(self, bound_s: float) -> list[str]:
        """Export what is left, for so long at most; returns what went wrong. All is written."""
        wrong = []
        if self._metrics is not None:
            self._metrics.end(bound_s)
        if self._traces is not None:
            served = self._traces.finish(bound_s)
            if served.left_spans or served.refused or served.rejected:
                wrong.append(f"{served.endpoint}: {served.message}")
        if self._metrics is not None:
            sent = self._metrics.wait()
            if not sent.whole:
                wrong.append(f"{sent.endpoint}: {sent.message}")
        return wrong


class LiveExporter:
    """Exports the ranks of one host while they train.

    ``client`` sends; ``endpoint`` is how it is named in reports; ``given`` are the user's
    attributes of the resource.
    """

    def __init__(
        self,
        source: Source,
        client: Client,
        endpoint: str,
        rule: Rule,
        given: Mapping[str, str] | None = None,
    ) -> None:
        self._source, self._client = source, client
        self._live = LiveRun(source, given or {})
        self._chooser = Chooser(rule)
        self.served = LiveExport(source.attempt, endpoint, rule.text())
        self._first_ns: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        self._outside: dict[int, list[OtelEvent]] = {}
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._written = ""
        self._thread = threading.Thread(target=self._run, name="tracekit-otlp", daemon=True)

    def start(self) -> None:
        """Begin to export."""
        self._thread.start()

    def finish(self, bound_s: float) -> LiveExport:
        """Export what is left, for so long at most, and report; all parts are written."""
        self._deadline = time.monotonic() + bound_s
        self._ending.set()
        self._thread.join(bound_s)
        self._client.close()  # ends a request that is on its way
        self._thread.join(1.0)
        self._report()
        return self.served

    # What the thread does

    def _run(self) -> None:
        while not self._ending.is_set():
            self._guarded(self._serve)
            self._ending.wait(_LOOK_EVERY_S)
        self._guarded(self._serve)
        self._guarded(self._serve_run)
        self.served.finished = True

    def _guarded(self, work: Callable[[], None]) -> None:
        """Nothing that happens here ends the agent."""
        try:
            work()
        except Exception as error:
            self.served.message = f"{type(error).__name__}: {error}"[:200]
        self._report()

    def _given_up(self) -> bool:
        return time.monotonic() >= self._deadline

    def _serve(self) -> None:
        for new in self._live.look(self._ending.is_set()):
            self._serve_outside(new)
        if self._live.unread:
            self.served.message = self._live.unread[-1]
        for number, spans, events in self._live.late():
            reason = self._chooser.known(number)
            if reason is not None and self._given_up():
                self.served.left_spans += len(spans)
            elif reason is not None:
                self._send([self._spans_of(number, spans, events, reason)])
        chosen: list[ByRank] = []
        for number, spans, events in self._live.steps():
            tops = spans.filter(pc.equal(spans["kind"], "step"))
            duration = pc.max(tops["duration_ns"]).as_py() or 0
            kinds = set(pc.unique(spans["kind"]).to_pylist())
            reason = self._chooser.reason(number, duration, kinds)
            if reason is not None:
                chosen.append(self._spans_of(number, spans, events, reason))
            if sum(map(_total, chosen)) >= _SPANS_AT_ONCE:
                self._send_steps(chosen)
            if self._given_up():
                self._send_steps(chosen)
                self._count_the_rest()
                break
        self._send_steps(chosen)

    def _send_steps(self, chosen: list[ByRank]) -> None:
        """Send steps, as many in one request as there are: a slow server is asked less often."""
        if chosen and self._send(chosen):
            self.served.steps += len(chosen)
        else:
            self.served.left_steps += len(chosen)
        chosen.clear()

    def _count_the_rest(self) -> None:
        for number, spans, duration, kinds in self._live.tallies():
            if self._chooser.reason(number, duration, kinds) is not None:
                self.served.left_steps += 1
                self.served.left_spans += spans

    def _spans_of(self, number: int, rows: pa.Table, events: pa.Table, reason: str) -> ByRank:
        """The spans of a step, within the budget."""
        step = step_spans(self._live.ids, number, rows, self._live.resources.domain)
        told = events_of(events)
        for rank, spans in step.by_rank.items():
            attach(spans, told.get(rank, []))
            step.by_rank[rank] = nested(self._marked(spans, reason), b"")
        kept, left = fit(self._live.ids, step.by_rank, {min(step.by_rank)}, self._budget())
        self.served.folded += left
        return kept

    def _marked(self, spans: list[OtelSpan], reason: str) -> list[OtelSpan]:
        """The spans of a rank; its root says why it is here, and leads to the run."""
        link = OtelLink(self._live.ids.trace(None), self._live.ids.run_span())
        why = (names.SAMPLE_REASON, reason)
        return [
            span._replace(attributes=(*span.attributes, why), links=(*span.links, link))
            if is_step(span)
            else span
            for span in spans
        ]

    def _budget(self) -> int:
        """This host's part of the spans of one trace."""
        world = max((self._live.resources.world_size(rank) for rank in self._live.ranks), default=0)
        share = self._source.ranks / world if world else 1.0
        return max(int(BUDGET * min(share, 1.0)), self._source.ranks)

    def _serve_outside(self, new: Outside) -> None:
        """What belongs to no step goes to the trace of the run."""
        for rank, told in events_of(new.events).items():
            known = self._outside.setdefault(rank, [])
            known += told[: _MOST_EVENTS - len(known)]
        if len(new.spans):
            self._send([by_rank(new.spans, self._live.ids)])

    def _serve_run(self) -> None:
        """The spans around everything, when it is over."""
        if not self._last_ns or self._given_up():
            return
        shared = Shared(self._live.ids.trace(None), "train_run", ((names.SHARED["kind"], "run"),))
        whole = self._live.ids.run_span()
        found: dict[int, list[OtelSpan]] = {}
        for rank, last in self._last_ns.items():
            first, events = self._first_ns[rank], tuple(self._outside.get(rank, ()))
            id_ = self._live.ids.run_span(rank)
            found[rank] = [OtelSpan(shared, id_, whole, first, last, (), events)]
        if 0 in found:
            first, last = min(self._first_ns.values()), max(self._last_ns.values())
            links = tuple(self._live.resources.parent_links())
            found[0].append(OtelSpan(shared, whole, b"", first, last, (), (), links))
        self._send([found])

    def _send(self, several: Sequence[ByRank]) -> bool:
        """Send until it is taken, refused, or too late; False where some of it is left."""
        from tracekit.exporters._otel.proto import requests

        of_rank: dict[int, list[OtelSpan]] = {}
        for spans in several:
            for rank, some in spans.items():
                of_rank.setdefault(rank, []).extend(some)
        portions = [
            Portion(self._live.resources.of(rank), some) for rank, some in of_rank.items() if some
        ]
        for rank, some in of_rank.items():
            for span in some:
                self._first_ns[rank] = min(span.start_ns, self._first_ns.get(rank, span.start_ns))
                self._last_ns[rank] = max(span.end_ns, self._last_ns.get(rank, 0))
        served = self.served
        whole = True
        for request, count in requests(portions, VERSION):
            answer = deliver(self._client, request, self._given_up, time.sleep)
            served.message = answer.message or served.message
            if answer.accepted:
                served.spans += count
                served.rejected += answer.rejected
            elif answer.retry:
                served.left_spans += count
                whole = False
            else:
                served.refused += count
        return whole

    def _report(self) -> None:
        """Write down what became of it, where the report of the run finds it."""
        source = self._source
        text = json.dumps(asdict(self.served))
        if text == self._written:
            return
        path = source.run_dir / f"attempt-{source.attempt:03d}" / f"otlp-{source.host}.json"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(text)
            os.replace(temporary, path)
            self._written = text


def _total(spans: ByRank) -> int:
    return sum(map(len, spans.values()))
