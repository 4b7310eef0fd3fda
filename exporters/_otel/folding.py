"""A trace that backends and their pages can hold: what is left out is counted.

Tempo keeps 5 MB of a trace by default and drops the rest after it has said yes; pages become slow
beyond 10,000 spans. So the collectives of most ranks become one span an operation and phase; the
first rank of each host and the slow ones stay whole. Parquet has everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from tracekit.exporters._otel import names
from tracekit.exporters._otel.spans import Items, OtelSpan, RunIds, Shared

__all__ = ["BUDGET", "fit"]

BUDGET = 10_000
"""Spans of one trace."""
_KIND = names.SHARED["kind"]
_BYTES = names.SHARED["collective_bytes"]


class _Level(Enum):
    """How much of a rank is shown."""

    WHOLE = 0
    FOLDED = 1
    STEP = 2


def fit(
    ids: RunIds, by_rank: Mapping[int, list[OtelSpan]], whole: Collection[int], budget: int
) -> tuple[dict[int, list[OtelSpan]], int]:
    """The spans of a step that fit into a budget, and how many are left out or folded.

    The ranks in ``whole`` stay whole if possible; where even one span a rank is too much, other
    ranks are left out, the last ones first.
    """
    before = sum(map(len, by_rank.values()))
    if before <= budget:
        return dict(by_rank), 0
    folded = {rank: _folded(ids, rank, spans) for rank, spans in by_rank.items()}
    tops = {rank: _step_only(spans) for rank, spans in by_rank.items()}
    shown = {
        _Level.WHOLE: by_rank,
        _Level.FOLDED: folded,
        _Level.STEP: tops,
    }
    kept: dict[int, list[OtelSpan]] = {}
    for few, many in (
        (_Level.WHOLE, _Level.FOLDED),
        (_Level.WHOLE, _Level.STEP),
        (_Level.FOLDED, _Level.STEP),
        (_Level.STEP, _Level.STEP),
    ):
        kept = {rank: shown[few if rank in whole else many][rank] for rank in by_rank}
        if sum(map(len, kept.values())) <= budget:
            break
    for rank in sorted(kept, key=lambda rank: (rank in whole, -rank)):
        if sum(map(len, kept.values())) <= budget:
            break
        kept[rank] = []
    left = sum(1 for spans in kept.values() for span in spans if not _count(span))
    return kept, before - left


def _count(span: OtelSpan) -> int:
    """How many a folded span stands for; 0 for one that was recorded."""
    return _number(span.attributes, names.FOLDED_COUNT)


def _number(attributes: Items, name: str) -> int:
    return sum(value for known, value in attributes if known == name and isinstance(value, int))


def _step_only(spans: Sequence[OtelSpan]) -> list[OtelSpan]:
    tops = [span for span in spans if _of(span, _KIND) == "step"]
    if not tops:
        return list(spans[:1])
    first, *rest = tops
    own = (*first.attributes, (names.FOLDED, len(spans) - len(tops)))
    return [first._replace(attributes=own), *rest]


def _folded(ids: RunIds, rank: int, spans: Sequence[OtelSpan]) -> list[OtelSpan]:
    """The spans, those of a phase that call the same operation of the same group as one."""
    kept: list[OtelSpan] = []
    groups: dict[tuple[object, ...], list[OtelSpan]] = {}
    for span in spans:
        if _of(span, _KIND) == "comm" and not span.events:
            op, group = (_of(span, names.SHARED[c]) for c in ("collective_op", "collective_group"))
            key = span.parent_id, span.shared.name, op, group, span.shared.error
            groups.setdefault(key, []).append(span)
        else:
            kept.append(span)
    for calls in groups.values():
        kept += calls if len(calls) == 1 else [_one(ids, rank, calls)]
    return kept


def _one(ids: RunIds, rank: int, calls: Sequence[OtelSpan]) -> OtelSpan:
    first = calls[0]
    shared = first.shared
    lengths = [call.end_ns - call.start_ns for call in calls]
    own: Items = (
        (names.FOLDED_COUNT, len(calls)),
        (names.FOLDED_TOTAL, sum(lengths)),
        (names.FOLDED_LONGEST, max(lengths)),
        (_BYTES, sum(_number(call.shared.attributes, _BYTES) for call in calls)),
    )
    waited = sum(_number(call.attributes, names.WAIT) for call in calls)
    if waited:
        own += ((names.WAIT, waited),)
    common = tuple(item for item in shared.attributes if item[0] != _BYTES)
    return OtelSpan(
        Shared(shared.trace_id, shared.name, common, shared.error),
        ids.named(f"folded {rank} {first.span_id.hex()}", len(calls)),
        first.parent_id,
        min(call.start_ns for call in calls),
        max(call.end_ns for call in calls),
        own,
    )


def _of(span: OtelSpan, name: str) -> object:
    for known, value in span.shared.attributes:
        if known == name:
            return value
    return None
