"""What it costs to give spans out by OTLP, against OpenTelemetry's SDK, and how large a trace is.

Blocks take turns in one process: the SDK makes spans with the attributes that ours have, ends them
and encodes them; ours go from the rows of parts to the same protobuf, five steps of the eight ranks
of a host. The trace is one step of 1,000 ranks on 125 hosts, 50 collectives a rank.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.rows import Row, main
from tracekit.dataset import open_run, write_table
from tracekit.exporters._otel.names import SHARED, VARYING
from tracekit.exporters._otel.proto import encode, requests
from tracekit.exporters._otel.spans import Portion, RunIds, by_rank
from tracekit.exporters._otel.traces import Traces
from tracekit.exporters.chrome_trace import Choice
from tracekit.testing.builder import RunBuilder

RANKS, STEPS, ROUNDS = 8, 5, 15


class Keep(SpanExporter):
    """Holds what ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def sdk(rows: list[dict[str, object]]) -> Callable[[], object]:
    """Makes, ends and encodes spans as a user of the SDK would."""
    kept = Keep()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("tracekit")
    names = {**SHARED, **VARYING}
    given = [
        (
            str(row["name"]),
            {names[c]: row[c] for c in names if row.get(c) is not None and c != "clock"},
        )
        for row in rows
    ]

    def work() -> object:
        kept.spans.clear()
        for name, attributes in given:
            tracer.start_span(name, attributes=attributes).end()  # type: ignore[arg-type]
        return [
            encode_spans(kept.spans[low : low + 512]).SerializeToString()
            for low in range(0, len(kept.spans), 512)
        ]

    return work


def ours(rows: pa.Table) -> Callable[[], object]:
    """From the rows of parts, sorted by rank, to requests."""

    def work() -> object:
        spans = by_rank(rows, RunIds("run", 0))
        return list(requests([Portion((("dl.rank", r),), s) for r, s in spans.items()], "1"))

    return work


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def encoding(rounds: int) -> Row:
    built = RunBuilder(RANKS, buckets=50)
    built.steps(STEPS)
    rows = built.tables()["spans"].sort_by([("rank", "ascending"), ("start_ns", "ascending")])
    works = sdk(built.spans), ours(rows)
    times = [[seconds(work) for work in works] for _ in range(rounds)]
    count = len(built.spans)
    theirs, mine = (statistics.median(column) / count * 1e6 for column in zip(*times, strict=True))
    return Row(
        f"a span by OTLP, {count:,} spans",
        f"{mine:.1f} µs, SDK {theirs:.1f} µs: 1/{theirs / mine:.1f}",
        "≤ 1/8",
        theirs >= 8 * mine,
    )


def thousand_ranks() -> Iterator[Row]:
    hosts = [f"node-{number}" for number in range(125)]
    built = RunBuilder(1000, buckets=50, hosts=hosts, domains=["one"] * 125)
    built.step(backward={700: 90.0})
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in built.tables().items():
            if len(rows):
                write_table(Path(folder) / "run", name, rows, world_size=1000)
        with open_run(Path(folder) / "run") as run:
            begun = time.perf_counter()
            traces = Traces(run, Choice(max_spans=1_000_000))
            portions = next(iter(traces))
            data = encode(portions, "1")
            took = time.perf_counter() - begun
    spans = sum(len(portion.spans) for portion in portions)
    yield Row(
        "one step of 1,000 ranks as a trace",
        f"{spans:,} spans, of {len(built.spans):,}, in {took:.1f} s",
        "≤ 10,000",
        spans <= 10_000,
    )
    yield Row("its size", f"{len(data) / 1e6:.2f} MB", "< 5 MB", len(data) < 5_000_000)


def benchmark(long: bool) -> Iterator[Row]:
    """The rows."""
    yield encoding(ROUNDS * (4 if long else 1))
    yield from thousand_ranks()


if __name__ == "__main__":
    main(benchmark, __doc__)
