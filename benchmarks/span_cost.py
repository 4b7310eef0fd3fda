"""What a span costs, against a span of the OpenTelemetry SDK in the same process.

Short blocks of both take turns, so that a neighbour on the machine meets both and few blocks; a
ratio is that of the medians of the blocks. Ours go to a real journal: fresh segments, commit words
and chunks are in. The SDK has a batch processor and an exporter that does nothing. For p99.9
every span is timed alone, the clock's own cost included.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter_ns

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.util.types import AnyValue

import tracekit
from benchmarks.rows import Row, main
from tracekit.recorder import clock, span, span_type

BLOCK = {True: 20, False: 250}
"""Spans in a block, of the SDK and of ours: a third of a millisecond."""
Form = Callable[[int], None]


class Nowhere(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Nowhere()))
tracer = provider.get_tracer("benchmark")
phase = span_type("forward", "forward")
collective = span_type("all_reduce", "comm")


def sdk(count: int) -> None:
    for _ in range(count):
        with tracer.start_as_current_span("augment"):
            pass


def sdk_with_attributes(count: int) -> None:
    attributes: dict[str, AnyValue]
    for i in range(count):
        attributes = {
            "batch": 64, "epoch": 3, "shard": "train", "cached": True, "index": i, "loss": i / 7,
        }  # fmt: skip
        with tracer.start_as_current_span("augment", attributes=attributes):
            pass


def with_span(count: int) -> None:
    for _ in range(count):
        with span("augment", kind="data"):
            pass


def with_attributes(count: int) -> None:
    for i in range(count):
        with span(
            "augment", kind="data",
            batch=64, epoch=3, shard="train", cached=True, index=i, loss=i / 7,
        ):  # fmt: skip
            pass


def with_handle(count: int) -> None:
    for _ in range(count):
        with phase:
            pass


def begin_and_end(count: int) -> None:
    for _ in range(count):
        collective.end(collective.begin())


def complete(count: int) -> None:
    for _ in range(count):
        phase.complete(clock(), clock())


FORMS: list[tuple[str, Form, Form, int]] = [
    ("with span(name, kind=)", with_span, sdk, 20),
    ("adapter: complete(start, end)", complete, sdk, 25),
    ("adapter: with handle", with_handle, sdk, 25),
    ("adapter: end(begin()), any thread", begin_and_end, sdk, 25),
    ("with span(), 6 attributes, 2 change", with_attributes, sdk_with_attributes, 15),
]


def timed(form: Form, count: int) -> float:
    """Nanoseconds a span in one block."""
    begun = perf_counter_ns()
    form(count)
    return (perf_counter_ns() - begun) / count


def p999(form: Form, count: int) -> float:
    """The time that 999 of 1,000 spans stay below, in microseconds."""
    times = array("q", bytes(8 * count))
    for place in range(count):
        begun = perf_counter_ns()
        form(1)
        times[place] = perf_counter_ns() - begun
    return sorted(times)[count * 999 // 1000] / 1000


def benchmark(long: bool) -> Iterator[Row]:
    spans = 1_000_000 if long else 100_000
    folder = tempfile.mkdtemp(prefix="tracekit-bench-")
    tracekit.start(run="bench", dir=folder, rank=0, world_size=1, agent=False)
    theirs = {sdk, sdk_with_attributes}
    forms = [*theirs, *(ours for _, ours, _, _ in FORMS)]
    try:
        blocks: dict[Form, list[float]] = {form: [] for form in forms}
        for form in forms:
            form(BLOCK[False])
        for _ in range(spans // BLOCK[False]):
            random.shuffle(forms)
            for form in forms:
                blocks[form].append(timed(form, BLOCK[form in theirs]))
        times = {form: median(blocks[form]) for form in forms}
        tails = {form: p999(form, spans // (10 if form in theirs else 1)) for form in forms}
        for what, form, their, bar in FORMS:
            ratio = times[their] / times[form]
            yield Row(
                what,
                f"{times[form]:.0f} ns, SDK {times[their]:.0f} ns: 1/{ratio:.1f}",
                f"<= 1/{bar}",
                ratio >= bar,
            )
        for what, form, their, bar in FORMS:
            ratio = tails[their] / tails[form]
            yield Row(
                f"p99.9 of {what}",
                f"{tails[form]:.1f} us, SDK {tails[their]:.1f} us: 1/{ratio:.1f}",
                f"<= 1/{bar}",
                ratio >= bar,
            )
    finally:
        tracekit.stop()
        provider.shutdown()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(benchmark, __doc__)
