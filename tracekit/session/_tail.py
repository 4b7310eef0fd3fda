"""The end of a journal that is being written: what is new in it, as spans of OpenTelemetry."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.dataset.decode import Origin, decode
from tracekit.exporters._otel.names import SHARED
from tracekit.exporters._otel.resource import Resources, given_resource
from tracekit.exporters._otel.spans import (
    Items,
    OtelSpan,
    Portion,
    RunIds,
    Shared,
    by_rank,
)
from tracekit.journal.reader import HEAD_SUFFIX, Segment, open_journal
from tracekit.journal.records import Records, read_records
from tracekit.journal.slots import Run, merge
from tracekit.model import kind_code
from tracekit.model.record import RECORD_WORDS, RecordType
from tracekit.session._rundir import Place

__all__ = ["Tail"]

FOREIGN = "otel:"
"""How the lanes begin on which an adapter puts OpenTelemetry's own spans: they came from there."""
_STEP = kind_code("step")
_READ = np.empty((0, RECORD_WORDS), np.int64)
"""The words of a segment that is read: a mapping that is kept would keep the memory of its file."""


class Tail:
    """A journal of this process, read from its beginning, each span once.

    ``missed`` counts segments that were gone before they were seen. Raises as ``open_journal``.
    """

    def __init__(self, place: Place) -> None:
        self.missed = 0
        self._journal = open_journal(place.journal_dir / f"{place.stem}{HEAD_SUFFIX}")
        self._slots: dict[int, list[Run]] = {}
        """What of the segments was read."""
        self._next = min(self._journal.segments, default=0)
        """The segment behind the last one that was read to its end."""
        self._facts = 0
        self._extent: tuple[int, int] | None = None
        self._resources: tuple[tuple[str, str, int], Resources] | None = None
        self._known = self._ended = False

    def look(self, place: Place) -> None:
        """Map what is new; the journal lies at ``place`` now."""
        journal = self._journal
        journal.folder, journal.stem = place.journal_dir, place.stem
        journal.path = place.journal_dir / f"{place.stem}{HEAD_SUFFIX}"
        journal.refresh()

    def read(self, ending: bool) -> Portion | None:
        """Spans that are new, of one segment at most; None where there are none.

        While rank or run may still change nothing is given, unless a step is over: who trains
        knows. At the end come the spans around everything, ``train_run``.
        """
        journal = self._journal
        unread = [segment for _, segment in sorted(journal.segments.items()) if len(segment.words)]
        self._known = self._known or ending or not journal.provisional or self._has_step(unread)
        if not self._known:
            return None
        for segment in unread:
            number, finished = segment.number, journal.finished(segment)
            records = self._records(segment, finished)
            spans = self._spans(records)
            self._slots[number] = merge([*self._slots.get(number, []), *records.taken])
            if finished:
                skipped = range(self._next, number)
                self.missed += sum(missing not in journal.segments for missing in skipped)
                self._next = max(self._next, number + 1)
                self._slots.pop(number)
                journal.segments[number] = Segment(number, segment.path, _READ)
            if spans:
                return Portion(self._resource(), spans)
        if ending and not self._ended and self._extent is not None:
            self._ended = True
            return Portion(self._resource(), self._run_spans(*self._extent))
        return None

    def _records(self, segment: Segment, finished: bool) -> Records:
        journal = self._journal
        return read_records(
            segment.words,
            segment.number,
            journal.chunk_slots,
            base=segment.number * journal.slots,
            finished=finished,
            covered=self._slots.get(segment.number, []),
        )

    def _has_step(self, segments: list[Segment]) -> bool:
        for segment in segments:
            records = self._records(segment, finished=False)
            kinds = records.rows[records.types == RecordType.SPAN, 2] & 0xFF
            if (kinds == _STEP).any():
                return True
        return False

    @property
    def _ids(self) -> RunIds:
        journal = self._journal
        return RunIds(str(journal.identity.get("uid", "")), journal.attempt)

    def _spans(self, records: Records) -> list[OtelSpan]:
        if not len(records):
            return []
        journal, ids = self._journal, self._ids
        journal.read_definitions()
        origin = Origin(ids.uid, ids.attempt, journal.rank, journal.offset_ns)
        rows = _own(decode(records, journal.definitions, origin)[0])
        if not len(rows):
            return []
        starts = rows["start_ns"].to_numpy()
        first, last = int(starts.min()), int((starts + rows["duration_ns"].to_numpy()).max())
        if self._extent is not None:
            first, last = min(first, self._extent[0]), max(last, self._extent[1])
        self._extent = first, last
        return by_rank(rows, ids).get(journal.rank, [])

    def _resource(self) -> Items:
        return self._known_facts().of(self._journal.rank)

    def _known_facts(self) -> Resources:
        """What the journal says of its rank by now."""
        journal, ids = self._journal, self._ids
        label = str(journal.identity.get("label") or "")
        key = ids.uid, label, journal.rank
        if self._resources is None or self._resources[0] != key:
            self._resources, self._facts = (
                (key, Resources(ids.uid, label, ids.attempt, given_resource())),
                0,
            )
            self._resources[1].learn(
                journal.rank, "rank", json.dumps(journal.identity, default=str)
            )
        resources = self._resources[1]
        facts = journal.definitions.facts
        for fact in facts[self._facts :]:
            resources.learn(journal.rank, fact.name, fact.value)
        self._facts = len(facts)
        return resources

    def _run_spans(self, first: int, last: int) -> list[OtelSpan]:
        """What spans without a step hang on: one of the rank, and with rank 0 one of the run."""
        ids, rank = self._ids, self._journal.rank
        shared = Shared(ids.trace(None), "train_run", ((SHARED["kind"], "run"),))
        spans = [OtelSpan(shared, ids.run_span(rank), ids.run_span(), first, last)]
        if rank == 0:
            links = tuple(self._known_facts().parent_links())
            spans.append(OtelSpan(shared, ids.run_span(), b"", first, last, links=links))
        return spans


def _own(rows: pa.Table) -> pa.Table:
    """The rows that were not OpenTelemetry's before."""
    foreign = pc.starts_with(rows["lane"].cast(pa.string()), FOREIGN)
    return rows.filter(pc.invert(pc.fill_null(foreign, False)))
