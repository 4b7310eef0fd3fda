"""Chrome's trace format, JSON: opens in Perfetto, chrome://tracing, Speedscope and others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

import orjson

from tracekit.dataset import Run
from tracekit.exporters._records import Choice
from tracekit.exporters._timeline.timeline import Timeline

__all__ = ["Choice", "Timeline", "export"]

_BATCH = 1 << 12


def export(run: Run, file: BinaryIO, choice: Choice | None = None) -> Timeline:
    """Write the chosen part of a run's last attempt; returns what was written.

    Raises ``UsageError``, before anything is written, where it is too much for a viewer.
    """
    timeline = Timeline(run, choice)
    about = {
        "run": run.label,
        "run_id": run.run_id,
        "attempt": timeline.attempt,
        "base_ns": timeline.base_ns,
    }
    file.write(b'{"displayTimeUnit":"ms","otherData":' + orjson.dumps(about))
    file.write(b',"traceEvents":[')
    separator = b"\n"
    events = _events(timeline)
    while batch := list(islice(events, _BATCH)):
        file.write(separator + orjson.dumps(batch)[1:-1].replace(b'},{"ph"', b'},\n{"ph"'))
        separator = b",\n"
    file.write(b"\n]}\n")
    return timeline


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    # Arrows come last: of equal times the one that stands first in the file is taken first, and
    # an arrow that begins with a span needs that span to be there.
    return chain(_names(timeline), _slices(timeline), _points(timeline), _flows(timeline))


def _names(timeline: Timeline) -> Iterable[dict[str, Any]]:
    for process in timeline.processes:
        one = {"ph": "M", "pid": process.pid}
        yield {**one, "name": "process_name", "args": {"name": process.name}}
        yield {**one, "name": "process_sort_index", "args": {"sort_index": process.rank}}
    for place, track in enumerate(timeline.tracks):
        one = {"ph": "M", "pid": track.process.pid, "tid": track.tid}
        yield {**one, "name": "thread_name", "args": {"name": track.name}}
        yield {**one, "name": "thread_sort_index", "args": {"sort_index": place}}


def _slices(timeline: Timeline) -> Iterable[dict[str, Any]]:
    base = timeline.base_ns
    for one in timeline.slices():
        yield {
            "ph": "X",
            "name": one.name,
            "cat": one.kind,
            "pid": one.track.process.pid,
            "tid": one.track.tid,
            "ts": _micros(one.start_ns - base),
            "dur": _micros(one.end_ns - one.start_ns),
            "args": one.args,
        }


def _points(timeline: Timeline) -> Iterable[dict[str, Any]]:
    base = timeline.base_ns
    for point in timeline.counters():
        yield {
            "ph": "C",
            "name": point.name,
            "pid": point.process.pid,
            "ts": _micros(point.time_ns - base),
            "args": {"value": point.value},
        }
    for event in timeline.instants():
        yield {
            "ph": "i",
            "name": event.name,
            "cat": "event",
            "s": "t",
            "pid": event.track.process.pid,
            "tid": event.track.tid,
            "ts": _micros(event.time_ns - base),
            "args": event.args,
        }


def _flows(timeline: Timeline) -> Iterable[dict[str, Any]]:
    """Each arrow as two events at one instant, in which both spans are there, and a mark.

    Perfetto lets an arrow begin at the slice that began first, and who waits began before the one
    that is waited for. The arrow ends in the mark, which did not; it lasts for the one nanosecond
    that a slice needs to be found.
    """
    for arrow in timeline.arrows:
        one = {"name": "waited for", "cat": "wait", "id": arrow.id}
        one["ts"] = ts = _micros(arrow.time_ns - timeline.base_ns)
        source, target = timeline.track_of(arrow.source), timeline.track_of(arrow.target)
        there = {"pid": target.process.pid, "tid": target.tid}
        came = f"rank {source.process.rank} came"
        yield {"ph": "X", "name": came, "cat": "wait", **there, "ts": ts, "dur": _micros(1)}
        yield {"ph": "s", "pid": source.process.pid, "tid": source.tid, **one}
        yield {"ph": "f", "bp": "e", **there, **one}


def _micros(ns: int) -> int | float:
    """Nanoseconds as the format's microseconds; both rounded and cut off they are the same again.

    Perfetto cuts off what is behind the third digit, and the nearest double may be just below it.
    """
    whole, rest = divmod(ns, 1000)
    if not rest:
        return whole
    micros = ns / 1000
    return micros if int(micros * 1000) >= ns else math.nextafter(micros, math.inf)
