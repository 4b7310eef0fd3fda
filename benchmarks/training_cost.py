"""What tracing costs a training: accounting of every call, then an A/B of whole steps.

Accounting: a step of 50 ms with 100 collectives, in which real work empties the caches between two
calls. Each call stands between two readings of the clock; every second step makes empty calls
instead, and what those cost is taken off. Of each call in the step the median over the steps
counts, so that a neighbour who takes the core away does not. The collectives are spans of a type
that the caller holds, then calls of torch.distributed as the adapter sees them, whose originals do
nothing: blocking ones, then asynchronous ones that are waited for. The first also without the
work between the calls, before all others and after: what hot caches save. Last the floors: what
any function in Python around such a call costs. A call's own p99.9 is that of a million spans in a
tight loop; next to it stands an empty call, for what the machine itself does to a tail.

A/B: one process, pinned to one core, trains a DDP model of 100 buckets. Blocks of 50 steps with
and without ``trace()`` take turns, the order in each pair by chance; between blocks everything
is attached or put back. A block is judged by the median of its steps, and by the CPU time of the
process, which no neighbour can steal; the interval is a bootstrap's over the pairs.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean, median
from struct import Struct
from time import monotonic_ns, perf_counter, perf_counter_ns, process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tracekit
from benchmarks.rows import Row, main
from tracekit import recorder
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._comm import collectives as _collectives
from tracekit.adapters.torch._comm import works as _works
from tracekit.model import Collective
from tracekit.recorder import span_type

STEP_NS = 50_000_000
COLLECTIVES = 100
BLOCK = 50
WARM_UP = 14
"""Steps before each block that do not count: what was just attached still looks for the buckets,
which a training does for two of 128 steps."""
BAR = 0.01


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
    """The time that 999 of 1,000 calls stay below, and the same of a call that does nothing."""
    phase = span_type("forward", "forward")
    enter, leave = phase.__enter__, phase.__exit__
    times, nothing = array("q", bytes(16 * spans)), array("q", bytes(16 * spans))
    for place in range(spans):
        before = perf_counter_ns()
        enter()
        between = perf_counter_ns()
        leave(None, None, None)
        after = perf_counter_ns()
        times[place * 2], times[place * 2 + 1] = between - before, after - between
        before = perf_counter_ns()
        str(place)
        str(between)
        nothing[place] = perf_counter_ns() - before
    ours = sorted(times)[len(times) * 999 // 1000] / 1000
    machine = sorted(nothing[:spans])[spans * 999 // 1000] / 1000
    holds = True if ours <= 20 else None if machine > 10 else False
    yield Row(
        f"p99.9 of a record call, {spans:,} spans",
        f"{ours:.1f} us (an empty call: {machine:.1f} us)",
        "<= 20 us",
        holds,
    )


class Training:
    """A DDP model of one rank whose step takes some tens of milliseconds on one core."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(192, 192) for _ in range(COLLECTIVES)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.14)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(128 * (WARM_UP + BLOCK), 192)),
            batch_size=128,
        )

    def block(self, traced: bool) -> tuple[float, float]:
        """Median wall time and mean CPU time of a step, in milliseconds."""
        handle = trace(self.model, self.optimizer, self.loader) if traced else None
        walls: list[float] = []
        cpu = begun = 0.0
        for number, (batch,) in enumerate(self.loader):
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            now = perf_counter()
            if number == WARM_UP - 1:
                cpu = process_time()
            elif number >= WARM_UP:
                walls.append(now - begun)
            begun = now
        cpu = (process_time() - cpu) / len(walls)
        if handle is not None:
            handle.detach()
        return median(walls) * 1000, cpu * 1000


def interval(changes: list[float]) -> tuple[float, float]:
    """The middle 95 % of bootstrapped means."""
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(changes, k=len(changes))) for _ in range(4_000))
    return means[100], means[-101]


def a_b(pairs: int) -> Iterator[Row]:
    """Blocks with and without tracing take turns."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    training = Training()
    training.block(traced=True)
    training.block(traced=False)
    blocks: list[dict[bool, tuple[float, float]]] = []
    for _ in range(pairs):
        order = random.sample([True, False], 2)
        blocks.append({traced: training.block(traced) for traced in order})
    for place, clock in enumerate(("wall time", "CPU time")):
        step = median(pair[False][place] for pair in blocks)
        low, high = interval([pair[True][place] / pair[False][place] - 1 for pair in blocks])
        holds = True if high <= BAR else None if high - low > BAR else False
        yield Row(
            f"A/B of {pairs * 2 * BLOCK:,} steps of {step:.0f} ms, {clock}",
            f"{low:+.2%} to {high:+.2%}{' (not shown)' if holds is None else ''}",
            "upper bound <= 1 %",
            holds,
        )


def benchmark(long: bool) -> Iterator[Row]:
    folder = Path(tempfile.mkdtemp(prefix="tracekit-bench-"))
    tracekit.start(run="bench", dir=str(folder), rank=0, world_size=1, agent=False)
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        yield from accounting(400 if long else 40)
        yield from tails(1_000_000 if long else 300_000)
        yield from a_b(80 if long else 10)
    finally:
        dist.destroy_process_group()
        tracekit.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(benchmark, __doc__)
