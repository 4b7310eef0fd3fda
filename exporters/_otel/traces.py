"""A run as traces: one a step across all ranks, and a small one for what belongs to no step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tracekit.dataset import Run
from tracekit.exporters._otel import names
from tracekit.exporters._otel.folding import BUDGET, fit
from tracekit.exporters._otel.resource import Resources
from tracekit.exporters._otel.spans import (
    Items,
    OtelEvent,
    OtelLink,
    OtelSpan,
    Portion,
    RunIds,
    Shared,
    by_rank,
    clean_time,
)
from tracekit.exporters._otel.step_traces import (
    ByRank,
    Step,
    attach,
    events_of,
    is_step,
    nested,
    root_span,
    step_spans,
)
from tracekit.exporters._records import Choice, Records, read_records
from tracekit.exporters._values import values

__all__ = ["Traces"]

_MOST = 128
"""Links and events of one span that backends keep."""
_TIMES = (("spans", "start_ns"), ("events", "time_ns"))


@dataclass(slots=True)
class Traces:
    """The chosen part of a run's last attempt; iterating gives one trace after the other.

    ``stragglers`` names the cause for each rank that the analysis accuses. ``shift_ns`` is added
    to all times and said in the resource. ``given`` are attributes of the resource by the user.
    Raises ``UsageError`` where the run is too much, or has no such step.
    """

    run: Run
    choice: Choice = field(default_factory=Choice)
    stragglers: Mapping[int, str] = field(default_factory=dict)
    shift_ns: int = 0
    given: Mapping[str, str] = field(default_factory=dict)
    budget: int = BUDGET
    ids: RunIds = field(init=False)
    steps: int = field(init=False, default=0)
    """Steps given out so far."""
    folded: int = field(init=False, default=0)
    """Spans that stand in a folded one, or for which the trace of a step had no room."""
    _records: Records = field(init=False, repr=False)
    _resources: Resources = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._records = records = read_records(self.run, self.choice)
        self.ids = RunIds(self.run.run_id, records.attempt)
        self._resources = Resources(
            self.run.run_id,
            self.run.label,
            records.attempt,
            self.given,
            self.shift_ns,
            self.choice.corrections,
        )
        facts = (values(records.facts[column]) for column in ("rank", "name", "value"))
        self._resources.learn_all(zip(*facts, strict=True))

    def __iter__(self) -> Iterator[list[Portion]]:
        spans, events = (_by_step(getattr(self._records, name), time) for name, time in _TIMES)
        left: dict[int, list[OtelEvent]] = {}
        roots: list[OtelLink] = []
        for number in sorted(number for number in spans if number is not None):
            step = step_spans(self.ids, number, spans[number], self._resources.domain)
            told = events_of(events.pop(number)) if number in events else {}
            for rank, some in told.items():
                left.setdefault(rank, []).extend(attach(step.by_rank.get(rank, []), some))
            portions, root = self._whole(number, step)
            roots.append(OtelLink(root.shared.trace_id, root.span_id, ((names.STEP, number),)))
            self.steps += 1
            yield self._moved(portions)
        if not self.choice.whole:
            return
        for rows in events.values():
            for rank, some in events_of(rows).items():
                left.setdefault(rank, []).extend(some)
        outside = by_rank(spans[None], self.ids) if None in spans else {}
        yield self._moved(self._of_run(outside, left, roots))

    def _whole(self, number: int, step: Step) -> tuple[list[Portion], OtelSpan]:
        """A step under one root, within the budget."""
        marked = {rank: self._marked(rank, spans) for rank, spans in step.by_rank.items()}
        kept, left = fit(self.ids, marked, self._important(step), self.budget - 1)
        self.folded += left
        own: Items = ((names.RANKS, len(marked)),)
        if left:
            own += ((names.FOLDED, left),)
        accused = sorted(rank for rank in self.stragglers if rank in marked)
        if accused:
            own += ((names.STRAGGLERS, ", ".join(map(str, accused))),)
        to_run = OtelLink(self.ids.trace(None), self.ids.run_span())
        root = root_span(self.ids, number, step, own, (to_run,))
        portions = [Portion(self._resources.of_run(), [root])]
        for rank, spans in kept.items():
            if spans:
                portions.append(Portion(self._resources.of(rank), nested(spans, root.span_id)))
        return portions, root

    def _marked(self, rank: int, spans: list[OtelSpan]) -> list[OtelSpan]:
        """The spans of a rank; that of the step says whether the rank is a straggler."""
        cause = self.stragglers.get(rank)
        if cause is None:
            return spans
        mark: Items = ((names.STRAGGLER, True), (names.STRAGGLER_CAUSE, cause))
        return [
            span._replace(attributes=span.attributes + mark) if is_step(span) else span
            for span in spans
        ]

    def _important(self, step: Step) -> set[int]:
        """Ranks to keep whole: the first of each host, the accused, who came last."""
        firsts: dict[str, int] = {}
        for rank in sorted(step.by_rank):
            firsts.setdefault(self._resources.host(rank), rank)
        last = [] if step.last is None else [step.last]
        return {*firsts.values(), *self.stragglers, *last}

    def _of_run(
        self, outside: ByRank, events: dict[int, list[OtelEvent]], roots: list[OtelLink]
    ) -> list[Portion]:
        """The trace of the run: a span around everything, one a rank, what is in no step."""
        first, last = self._extent()
        shared = Shared(self.ids.trace(None), "train_run", ((names.SHARED["kind"], "run"),))
        links = tuple([*self._resources.parent_links(), *roots][:_MOST])
        root = OtelSpan(shared, self.ids.run_span(), b"", first, last, (), (), links)
        portions = [Portion(self._resources.of_run(), [root])]
        for rank in sorted({*outside, *events, *self.run.ranks}):
            of_rank = OtelSpan(
                shared, self.ids.run_span(rank), root.span_id, first, last, (),
                tuple(events.get(rank, ())[:_MOST]),
            )  # fmt: skip
            inside = nested(outside.get(rank, []), of_rank.span_id)
            portions.append(Portion(self._resources.of(rank), [of_rank, *inside]))
        return portions

    def _extent(self) -> tuple[int, int]:
        """The first and the last instant of what was chosen."""
        spans, events = self._records.spans, self._records.events
        starts = spans["start_ns"].to_numpy()
        ends = starts + np.maximum(spans["duration_ns"].to_numpy(), 0)
        told = events["time_ns"].to_numpy()
        first = min((int(times.min()) for times in (starts, told) if len(times)), default=0)
        last = max((int(times.max()) for times in (ends, told) if len(times)), default=first)
        return clean_time(first), clean_time(last)

    def _moved(self, portions: list[Portion]) -> list[Portion]:
        """With the shift added to every time."""
        shift = self.shift_ns
        if not shift:
            return portions
        return [
            Portion(
                portion.resource,
                [
                    span._replace(
                        start_ns=clean_time(span.start_ns + shift),
                        end_ns=clean_time(span.end_ns + shift),
                        events=tuple(
                            event._replace(time_ns=clean_time(event.time_ns + shift))
                            for event in span.events
                        ),
                    )
                    for span in portion.spans
                ],
            )
            for portion in portions
        ]


def _by_step(rows: pa.Table, time: str) -> dict[int | None, pa.Table]:
    """Rows by step, each sorted by rank and time."""
    rows = rows.sort_by([("step", "ascending"), ("rank", "ascending"), (time, "ascending")])
    missing = rows["step"].null_count  # they come last
    known = rows["step"].slice(0, len(rows) - missing).to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(known)) + 1).tolist(), len(known)] if len(known) else [0]
    found: dict[int | None, pa.Table] = {
        int(known[low]): rows.slice(low, high - low) for low, high in pairwise(bounds)
    }
    if missing:
        found[None] = rows.slice(len(known))
    return found
