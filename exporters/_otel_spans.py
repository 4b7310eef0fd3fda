"""Spans as OpenTelemetry knows them, made from rows; every encoder starts from these.

Many spans of a step differ in their ids and times alone. What they share stands in one ``Shared``,
which encoders turn into bytes once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa

from tracekit.exporters._otel_names import OPEN, RANK, SHARED, VARYING
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
    "clean",
    "clean_time",
    "from_rows",
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

        @lru_cache(maxsize=1 << 10)  # parents are asked for again and again
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


@dataclass(slots=True)
class _Rows:
    """Where rows become spans; the constant parts are remembered."""

    ids: RunIds
    rank: int
    shared: dict[tuple[Any, ...], Shared] = field(default_factory=dict)

    def common(self, key: tuple[Any, ...]) -> Shared:
        """What the rows with these values have in common."""
        found = self.shared.get(key)
        if found is None:
            name, error, is_open, *columns = key
            named = zip(SHARED.items(), columns, strict=True)
            attributes = [
                (attribute, clean(value))
                for (column, attribute), value in named
                if value is not None and value != _UNSAID.get(column)
            ]
            if is_open:
                attributes.append((OPEN, True))
            step = columns[_STEP]
            found = Shared(
                self.ids.trace(step), str(clean(name or "span")), tuple(attributes), error
            )
            if len(self.shared) > 1 << 13:
                self.shared.clear()
            self.shared[key] = found
        return found


_STEP = list(SHARED).index("step")


def from_rows(
    rows: pa.Table,
    ids: RunIds,
    rank: int,
    extra: Mapping[int, Items] | None = None,
    links: Mapping[int, tuple[OtelLink, ...]] | None = None,
    first: int = 0,
) -> Iterator[OtelSpan]:
    """The rows of one rank as spans, in their order.

    A span of kind step is the root of its rank in the trace of the step; a span without a parent
    that belongs to no step hangs on the rank's span ``train_run``. ``extra`` and ``links`` add to a
    row by its place; ``first`` is the place of the first row.
    """
    maker = _Rows(ids, rank)
    common, span_id, run_span = maker.common, ids.spans_of(rank), ids.run_span(rank)
    shared = zip(
        values(rows["name"]),
        [status == "error" for status in values(rows["status"])],
        values(rows["is_open"]),
        *(values(rows[column]) for column in SHARED),
        strict=True,
    )
    sequences, launches, attributes = (
        values(rows[column]) for column in ("collective_seq", "launch_ns", "attributes")
    )
    kinds, steps = values(rows["kind"]), values(rows["step"])
    numbers, parents = values(rows["span_id"]), values(rows["parent_id"])
    starts, durations = values(rows["start_ns"]), values(rows["duration_ns"])
    of_rank = (RANK, rank)  # again, for viewers that do not show the resource
    seq_name, launch_name = VARYING["collective_seq"], VARYING["launch_ns"]
    extra, links = extra or {}, links or {}
    for place, key in enumerate(shared):
        where = first + place
        own: Items = ()
        if sequences[place] is not None:
            own = ((seq_name, sequences[place]),)
        if launches[place] is not None:
            own += ((launch_name, launches[place]),)
        if attributes[place]:
            own += items(attributes[place])
        parent, number = parents[place], numbers[place]
        start = clean_time(starts[place])
        if kinds[place] == "step":
            parent_id = b""
            own = (of_rank, *own)
        elif parent is not None:
            parent_id = span_id(parent)
        else:
            parent_id = run_span if steps[place] is None else b""
        yield OtelSpan(
            common(key),
            span_id(number),
            parent_id,
            start,
            clean_time(start + max(durations[place], 0)),
            own + extra[where] if where in extra else own,
            (),
            links.get(where, ()),
        )


def total(portions: Iterable[Portion]) -> int:
    """How many spans these are."""
    return sum(len(portion.spans) for portion in portions)
