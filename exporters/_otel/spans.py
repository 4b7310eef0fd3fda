"""Spans as OpenTelemetry knows them, made from rows; every encoder starts from these.

Many spans of a step differ in their ids and times alone. What they share stands in one ``Shared``,
which encoders turn into bytes once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.exporters._otel.names import OPEN, RANK, SHARED, VARYING
from tracekit.exporters._values import Value, values
from tracekit.model import step_trace_id

__all__ = [
    "Items",
    "OtelEvent",
    "OtelLink",
    "OtelSpan",
    "Portion",
    "RunIds",
    "Shared",
    "by_rank",
    "clean",
    "clean_time",
    "items",
]

MOST_ATTRIBUTES = 128
LONGEST_TEXT = 4096
_INT64 = 1 << 63
_UNSAID = {"clock": "host"}
_USER = "tracekit.user."
_OURS = frozenset((*SHARED.values(), *VARYING.values(), OPEN, RANK))

Items = tuple[tuple[str, Value], ...]
"""Attributes by name; values are texts, integers of 64 bits, finite numbers and truth values."""


class OtelEvent(NamedTuple):
    """An instant inside a span; Unix nanoseconds."""

    name: str
    time_ns: int
    attributes: Items = ()


class OtelLink(NamedTuple):
    """Another span, of this trace or of another one."""

    trace_id: bytes
    span_id: bytes
    attributes: Items = ()


@dataclass(eq=False, slots=True)
class Shared:
    """What spans have in common; ``encoded`` is its form on the wire, once somebody needed it."""

    trace_id: bytes
    name: str
    attributes: Items = ()
    error: bool = False
    encoded: bytes | None = None


class OtelSpan(NamedTuple):
    """A span; ids are 16 and 8 bytes, no parent is ``b""``, times are Unix nanoseconds."""

    shared: Shared
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    attributes: Items = ()
    """Its own ones; those of ``shared`` come before them."""
    events: tuple[OtelEvent, ...] = ()
    links: tuple[OtelLink, ...] = ()


class Portion(NamedTuple):
    """Spans of one resource, that is of one rank."""

    resource: Items
    spans: list[OtelSpan]


class RunIds:
    """The ids of one attempt of a run, which every rank derives alike (see ``tracekit.model``)."""

    def __init__(self, uid: str, attempt: int) -> None:
        self.uid, self.attempt = uid, attempt
        self._steps: dict[int | None, bytes] = {None: run_trace_id(uid, attempt)}
        self.shared = _Known(self)
        """What spans of all ranks have in common, by the values of their rows."""

    def trace(self, step: int | None) -> bytes:
        """The trace of a step; without one, that of the run."""
        found = self._steps.get(step)
        if found is None:
            assert step is not None
            if len(self._steps) > 1 << 16:
                self._steps = {None: self._steps[None]}
            found = self._steps[step] = step_trace_id(self.uid, self.attempt, step)
        return found

    def span(self, rank: int, sequence: int) -> bytes:
        """The id of a rank's span, the same as ``tracekit.model.span_id``."""
        return self.spans_of(rank)(sequence)

    def spans_of(self, rank: int) -> Callable[[int], bytes]:
        """What gives the ids of a rank's spans; what they have in common is hashed once."""
        copy = blake2b(f"span\0{self.uid}\0{self.attempt}\0{rank}\0".encode(), digest_size=8).copy

        def span_id(sequence: int) -> bytes:
            hashed = copy()
            hashed.update(b"%d" % sequence)
            return hashed.digest()

        return span_id

    def run_span(self, rank: int = -1) -> bytes:
        """The id of the span ``train_run``: the whole run's, or a rank's."""
        return self.named("run", rank)

    def named(self, name: str, number: int) -> bytes:
        """The id of a span that no rank recorded."""
        text = f"{name}\0{self.uid}\0{self.attempt}\0{number}".encode()
        return blake2b(text, digest_size=8, person=b"tracekit").digest()


def run_trace_id(uid: str, attempt: int) -> bytes:
    """The 16-byte trace id of what belongs to an attempt and to no step of it."""
    return blake2b(f"run\0{uid}\0{attempt}".encode(), digest_size=16).digest()


@lru_cache(maxsize=1 << 12)
def clean(value: Value) -> Value:
    """A value that every backend takes: long texts are cut, larger integers become texts."""
    if isinstance(value, str):
        if not value.isascii():
            value = value.encode("utf-8", "replace").decode()
        return value if len(value) <= LONGEST_TEXT else value[: LONGEST_TEXT - 1] + "…"
    if type(value) is int and not -_INT64 <= value < _INT64:
        return str(value)
    return "null" if value is None else value


def items(given: Mapping[str, Value]) -> Items:
    """Attributes of a user: cleaned, none named as one of ours, not more than backends take."""
    found = []
    for name, value in given.items():
        name = str(clean(name or "_"))
        found.append((_USER + name if name in _OURS else name, clean(value)))
    return tuple(found[: MOST_ATTRIBUTES - len(_OURS)])


def clean_time(time_ns: int) -> int:
    """A time that the protocol can hold: it knows none before 1970."""
    return min(max(time_ns, 0), _INT64 - 1)


class _Known(dict[tuple[Any, ...], Shared]):
    """What rows with the same values have in common; made when it is first asked for."""

    def __init__(self, ids: RunIds) -> None:
        super().__init__()
        self._ids = ids

    def __missing__(self, key: tuple[Any, ...]) -> Shared:
        name, status, is_open, *columns = key
        attributes = [
            (attribute, clean(value))
            for (column, attribute), value in zip(SHARED.items(), columns, strict=True)
            if value is not None and value != _UNSAID.get(column)
        ]
        if is_open:
            attributes.append((OPEN, True))
        trace_id = self._ids.trace(columns[_STEP])
        if len(self) > 1 << 13:
            self.clear()
        made = Shared(trace_id, str(clean(name or "span")), tuple(attributes), status == "error")
        self[key] = made
        return made


_STEP = list(SHARED).index("step")
_SEQ, _LAUNCH = VARYING["collective_seq"], VARYING["launch_ns"]


def by_rank(
    rows: pa.Table,
    ids: RunIds,
    extra: Mapping[int, Items] | None = None,
    links: Mapping[int, tuple[OtelLink, ...]] | None = None,
) -> dict[int, list[OtelSpan]]:
    """Rows as spans, in their order.

    A span of kind step is the root of its rank in the trace of the step; a span without a parent
    that belongs to no step hangs on the rank's span ``train_run``. ``extra`` and ``links`` add to a
    row by its place.
    """
    found: dict[int, list[OtelSpan]] = {}
    known, current = ids.shared, None
    keys = zip(
        *(values(rows[column]) for column in ("name", "status", "is_open", *SHARED)), strict=True
    )
    columns = (
        "rank", "span_id", "parent_id", "kind", "step", "collective_seq", "launch_ns", "attributes",
    )  # fmt: skip
    others = zip(*(values(rows[column]) for column in columns), strict=True)
    for place, (key, start, end, other) in enumerate(zip(keys, *_times(rows), others, strict=True)):
        rank, number, parent, kind, step, seq, launch, attributes = other
        if rank != current:
            current, spans = rank, found.setdefault(rank, [])
            span_id, run_span = ids.spans_of(rank), ids.run_span(rank)
            parent_id = lru_cache(maxsize=1 << 10)(span_id)  # the same few again and again
            of_rank = ((RANK, rank),)  # again, for viewers that do not show the resource
        own: Items = () if seq is None else ((_SEQ, seq),)
        if launch is not None:
            own += ((_LAUNCH, launch),)
        if attributes:
            own += items(attributes)
        if kind == "step":
            under, own = b"", of_rank + own
        elif parent is not None:
            under = parent_id(parent)
        else:
            under = run_span if step is None else b""
        if extra and place in extra:
            own += extra[place]
        linked = links.get(place, ()) if links else ()
        spans.append(OtelSpan(known[key], span_id(number), under, start, end, own, (), linked))
    return found


def _times(rows: pa.Table) -> tuple[list[int], list[int]]:
    """Starts and ends as the protocol can hold them, no end before its start."""
    starts = np.maximum(rows["start_ns"].to_numpy(), 0)
    durations = np.maximum(rows["duration_ns"].to_numpy(), 0)
    ends = starts + np.minimum(durations, _INT64 - 1 - starts)
    return starts.tolist(), ends.tolist()


def total(portions: Iterable[Portion]) -> int:
    """How many spans these are."""
    return sum(len(portion.spans) for portion in portions)
