"""Rows of ``facts``: what ranks recorded, and what the heads of their journals say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tracekit.dataset.decode import Origin
from tracekit.dataset.schema import FACTS
from tracekit.journal.definitions import Fact, json_text
from tracekit.journal.format import Live
from tracekit.journal.reader import JournalReader

__all__ = ["FactRow", "fact_rows", "summary", "table_of"]


@dataclass(frozen=True, slots=True)
class FactRow:
    """One row; ``value`` is anything JSON can hold, ``text`` its JSON where that is known."""

    run_id: str
    attempt: int
    rank: int | None
    name: str
    value: Any = None
    host: str | None = None
    time_ns: int | None = None
    source: str | None = None
    text: str | None = None


def table_of(rows: Iterable[FactRow]) -> pa.Table:
    """Rows as a table."""
    listed = list(rows)
    columns: dict[str, list[Any]] = {
        "run_id": [row.run_id for row in listed],
        "attempt": [row.attempt for row in listed],
        "rank": [row.rank for row in listed],
        "host": [row.host for row in listed],
        "name": [row.name for row in listed],
        "value": [json_text(row.value) if row.text is None else row.text for row in listed],
        "time_ns": [row.time_ns for row in listed],
        "source": [row.source for row in listed],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in FACTS]
    return pa.Table.from_arrays(arrays, schema=FACTS)


def fact_rows(facts: Iterable[Fact], origin: Origin, host: str | None) -> list[FactRow]:
    """Facts that a rank recorded; their times become Unix times."""
    return [
        FactRow(
            origin.run_id,
            origin.attempt,
            origin.rank,
            fact.name,
            host=host,
            time_ns=fact.time_ns + origin.offset_ns,
            source=fact.source,
            text=fact.value,
        )
        for fact in facts
    ]


def summary(journal: JournalReader, origin: Origin, lost: int) -> list[FactRow]:
    """What a head says at the end, or so far: last beat, clock, sequence numbers, losses."""
    host = journal.identity.get("host")

    def row(name: str, value: Mapping[str, Any], time_ns: int | None = None) -> FactRow:
        return FactRow(
            origin.run_id, origin.attempt, origin.rank, name, value, host=host, time_ns=time_ns
        )

    beat = journal.live(Live.HEARTBEAT) + origin.offset_ns
    rows = [
        row("heartbeat", {"time_ns": beat}, beat),
        row("clock", _clock(journal, origin)),
    ]
    for group, (enqueued, completed) in journal.groups().items():
        value = {"group": group, "enqueued": enqueued, "completed": completed}
        rows.append(row("last_seq", value))
    if lost:
        evicted = journal.live(Live.EVICTED)
        reason = "quota" if evicted else "no room for journals"
        rows.append(row("dropped", {"spans": lost, "reason": reason}))
    folded, overflow = journal.live(Live.OTHER), journal.live(Live.OPEN_OVERFLOW)
    if folded or overflow:
        rows.append(row("folded", {"names": folded, "open_spans": overflow}))
    return rows


def _clock(journal: JournalReader, origin: Origin) -> dict[str, Any]:
    """The clock domain, the one offset in use, and the first and last pair of readings."""
    identity = journal.identity
    domain = identity.get("clock_domain")
    if domain is None:
        domain = f"{identity.get('boot_id', '')}:{identity.get('time_ns', '')}"
    anchors = journal.anchors()
    ends = [anchors[0], anchors[-1]] if anchors else []
    return {
        "domain": domain,
        "anchors": journal.live(Live.ANCHORS),
        "offset_ns": origin.offset_ns,
        "ends": [{"monotonic_ns": end.monotonic_ns, "unix_ns": end.unix_ns} for end in ends],
    }
