"""What tracing costs a training that calls collectives itself: accounting of every call.

A step of 50 ms with 100 collectives, in which real work empties the caches between two
calls. Each call stands between two readings of the clock; every second step makes empty calls
instead, and what those cost is taken off. Of each call in the step the median over the steps
counts, so that a neighbour who takes the core away does not. The collectives are spans of a type
that the caller holds, then calls of torch.distributed as the adapter sees them, whose originals do
nothing: blocking ones, then asynchronous ones that are waited for. The first also without the
work between the calls, before all others and after: what hot caches save. Last the floors: what
any function in Python around such a call costs. A call's own p99.9 is that of a million spans in a
tight loop. Next to it stands an empty call that takes as long, for what the machine itself does to
a tail: where it is put aside each millisecond, so is one of a thousand calls of a microsecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from statistics import median
from struct import Struct
from time import monotonic_ns, perf_counter_ns
from timeit import repeat
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.one_rank import one_rank
from benchmarks.rows import Row, main
from tracekit import recorder
from tracekit.adapters.torch._comm import collectives as _collectives
from tracekit.adapters.torch._comm import works as _works
from tracekit.model import Collective
from tracekit.recorder import SpanType, span_type

STEP_NS = 50_000_000
COLLECTIVES = 100
TAIL_US = 20

Called = tuple[Callable[..., Any], tuple[Any, ...]]


class Work:
    """What a call gives back that is over at once."""

    __slots__ = ("__weakref__",)


def adapter() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How the adapter sees an all_reduce and the wait for it, around originals that do nothing."""

    def allreduce(*_: Any) -> Work:
        return Work()

    def wait(*_: Any) -> bool:
        return True

    traced = partial(_collectives._traced, "all_reduce", "allreduce")
    return _collectives._quickly("all_reduce", True, traced, allreduce), _works._traced_wait(wait)


def floors() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What any Python function around a blocking call costs, with more and more of what it needs:
    nothing, then what must be asked of PyTorch, then the two times and one packed record."""

    def original(*_: Any) -> Work:
        return Work()

    def nothing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    def asking(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        (tensor,) = args[0]
        told = (
            tensor.nbytes, tensor.is_cpu, tensor.dtype, args[-1].asyncOp,
            self._get_sequence_number_for_group(),
        )  # fmt: skip
        assert told
        return original(self, *args, **kwargs)

    pages = memoryview(bytearray(1 << 22))
    commits, pack = pages.cast("q"), Struct("7q").pack_into
    places = count(0, 64).__next__

    def recording(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        (tensor,) = args[0]
        nbytes, _, _, _ = tensor.nbytes, tensor.is_cpu, tensor.dtype, args[-1].asyncOp
        seq = self._get_sequence_number_for_group()
        begun = monotonic_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            place = places() & 0x3FFFC0
            pack(pages, place + 8, begun, monotonic_ns(), seq, nbytes, 7, 7, 7)
            commits[place >> 3] = 7

    yield "of a function that only calls on", nothing
    yield "of one that asks PyTorch as well", asking
    yield "of one that also packs one record, without an open-span table", recording


def accounting(steps: int) -> Iterator[Row]:
    """Time that the calling thread spends inside tracekit, as a share of the step."""
    rec = recorder.current()
    assert rec is not None
    reduce = span_type("all_reduce", "comm", Collective("all_reduce", "bench", 8), "group:bench")
    phases = [span_type(kind, kind) for kind in ("data", "forward", "backward", "optimizer")]
    work = np.ones(1 << 19)
    returned: list[Any] = []

    def by_type(number: int) -> Iterator[Called]:
        yield reduce.begin, (number, 1 << 20)
        yield reduce.end, tuple(returned)

    seen, waited = adapter()
    tensors = [torch.zeros(1 << 18)]
    blocking, going_on = dist.AllreduceOptions(), dist.AllreduceOptions()
    blocking.asyncOp, going_on.asyncOp = False, True

    def by_call(number: int) -> Iterator[Called]:
        yield seen, (dist.group.WORLD, tensors, blocking)
        yield waited, tuple(returned)

    def by_work(number: int) -> Iterator[Called]:
        yield seen, (dist.group.WORLD, tensors, going_on)
        yield waited, tuple(returned)

    def calls(step: int, collective: Callable[[int], Iterator[Called]]) -> Iterator[Called]:
        yield rec.begin_step, (step,)
        for phase in phases:
            yield phase.__enter__, ()
            if phase is phases[2]:
                for number in range(COLLECTIVES):
                    yield from collective(step * COLLECTIVES + number)
            yield phase.__exit__, (None, None, None)
        yield rec.end_step, ()

    def nothing(*_: Any) -> None:
        return None

    rows: list[tuple[str, Callable[[int], Iterator[Called]], str]] = [
        ("spans of collectives", by_type, "nothing"),
        ("spans of collectives", by_type, "real work"),
        ("calls of torch.distributed", by_call, "real work"),
        ("asynchronous calls of it", by_work, "real work"),
        ("spans of collectives", by_type, "nothing"),
    ]
    for told, floor in floors():

        def by_floor(_: int, floor: Callable[..., Any] = floor) -> Iterator[Called]:
            yield floor, (dist.group.WORLD, tensors, blocking)

        rows.append((f"calls {told}", by_floor, "real work"))
    barred = (by_type, by_call, by_work)
    for what, collective, between in rows:
        spent: dict[bool, list[list[int]]] = {True: [], False: []}
        for step in range(2 * steps):
            real = step % 2 == 0
            times = []
            for function, arguments in calls(step, collective):
                if between != "nothing":
                    work *= 1.0000001  # four megabytes: more than the caches next to the core
                called = function if real else nothing
                begun = perf_counter_ns()
                result = called(*arguments)
                times.append(perf_counter_ns() - begun)
                returned[:] = [result]
            spent[real].append(times)
        ours, empty = (sum(map(median, zip(*spent[real], strict=True))) for real in (True, False))
        share = (ours - empty) / STEP_NS
        yield Row(
            f"inside tracekit, {STEP_NS // 10**6} ms step, {COLLECTIVES} {what}, {between} between",
            f"{(ours - empty) / 1000:.0f} us: {share:.2%}",
            "<= 0.5 %" if collective in barred else "",
            share <= 0.005 if collective in barred else None,
        )


def tails(spans: int) -> Iterator[Row]:
    """The time that 999 of 1,000 calls stay below, and the same of as long a call of no use."""
    phase = span_type("forward", "forward")
    enter, leave = phase.__enter__, phase.__exit__
    times, nothing = array("q", bytes(16 * spans)), array("q", bytes(8 * spans))
    words = range(_words_as_long_as(phase))
    for place in range(spans):
        before = perf_counter_ns()
        enter()
        between = perf_counter_ns()
        leave(None, None, None)
        after = perf_counter_ns()
        times[place * 2], times[place * 2 + 1] = between - before, after - between
        before = perf_counter_ns()
        for word in words:
            str(word)
        nothing[place] = perf_counter_ns() - before
    (ours, slow), (machine, beside) = _tail(times), _tail(nothing)
    own = slow - beside
    yield Row(
        f"p99.9 of a record call, {spans:,} spans",
        f"{ours:.1f} us (as long an empty call: {machine:.1f} us);"
        f" {slow:.3%} of calls take more than {TAIL_US} us (empty: {beside:.3%})",
        f"<= {TAIL_US} us",
        True if ours <= TAIL_US else False if own > 0.001 else None,
    )


def _words_as_long_as(phase: SpanType) -> int:
    """How many small numbers are written down while one of a span's two calls is made."""

    def span() -> None:
        with phase:
            pass

    half, word = (min(repeat(call, number=2000)) for call in (span, partial(str, 1)))
    return max(1, round(half / 2 / word))


def _tail(times: array[int]) -> tuple[float, float]:
    """The p99.9 in microseconds, and what part of all takes longer than the bar."""
    ordered = np.sort(np.array(times))
    within = int(np.searchsorted(ordered, TAIL_US * 1000, "right"))
    return float(ordered[len(ordered) * 999 // 1000]) / 1000, 1 - within / len(ordered)


def benchmark(long: bool) -> Iterator[Row]:
    with one_rank():
        yield from accounting(400 if long else 40)
        yield from tails(1_000_000 if long else 300_000)


if __name__ == "__main__":
    main(benchmark, __doc__)
