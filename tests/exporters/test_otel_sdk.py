"""A run for exporters of OpenTelemetry's SDK: the same spans as by OTLP, in batches, none lost."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.common")

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.exporters.runs import write_run
from tracekit.dataset import Run, open_run
from tracekit.errors import TracekitError, UsageError
from tracekit.exporters import otel_sdk
from tracekit.exporters._otel.proto import encode
from tracekit.exporters._otel.traces import Traces
from tracekit.exporters._otlp.version import VERSION
from tracekit.model import span_id, step_trace_id
from tracekit.testing.builder import RunBuilder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Two ranks, three steps in which rank 1 is late, a failed span, one outside of all steps."""
    built = RunBuilder(world_size=2)
    for _ in range(3):
        built.step(forward={1: 30})
    now = built.now[0]
    built.span(0, "user", now, now + 7, "breaks", step=2, status="error")
    built.span(1, "init", now, now + 1, "outside", attributes=[("text", '"ä"'), ("n", "1.5")])
    built.fact("otel_parent", {"trace_id": "0a" * 16, "span_id": "0b" * 8}, 0)
    with open_run(write_run(built, tmp_path / "run")) as opened:
        yield opened


def handed(run: Run, choice: otel_sdk.Choice | None = None) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    count = otel_sdk.export(run, exporter, choice)
    spans = list(exporter.get_finished_spans())
    assert count == len(spans)
    return spans


def decoded(request: ExportTraceServiceRequest) -> list[str]:
    """The spans with resource and scope as text; without the flags, which the SDK loses.

    The SDK writes a status that is not set, and we leave it out.
    """
    found = []
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                span.flags = 0
                if not span.status.code:
                    span.ClearField("status")
                for link in span.links:
                    link.flags = 0
                found.append(f"{span}\n{of_scope.scope}\n{of_resource.resource}")
    return sorted(found)


def test_spans_are_the_same_as_by_otlp(run: Run) -> None:
    ours = ExportTraceServiceRequest()
    ours.ParseFromString(encode(chain.from_iterable(Traces(run)), VERSION))
    theirs = encode_spans(handed(run))
    assert decoded(theirs) == decoded(ours)
    assert len(decoded(ours)) > 20


def test_ids_are_those_that_every_rank_derives(run: Run) -> None:
    rows = run.table("spans").to_pylist()
    expected = {
        (
            int.from_bytes(step_trace_id(run.run_id, 0, row["step"]), "big"),
            int.from_bytes(span_id(run.run_id, 0, row["rank"], row["span_id"]), "big"),
            row["start_ns"],
            row["start_ns"] + row["duration_ns"],
        )
        for row in rows
        if row["step"] is not None
    }
    found = {
        (span.context.trace_id, span.context.span_id, span.start_time, span.end_time)
        for span in handed(run)
    }
    assert expected
    assert expected <= found


def test_status_links_and_attributes_keep_their_types(run: Run) -> None:
    by_name = {span.name: span for span in handed(run)}
    assert by_name["breaks"].status.status_code is StatusCode.ERROR
    assert by_name["train_step"].status.status_code is StatusCode.UNSET
    outside = dict(by_name["outside"].attributes or {})
    assert (outside["text"], outside["n"]) == ("ä", 1.5)
    (link, *_) = next(s for s in handed(run) if s.name == "train_run" and s.parent is None).links
    assert (link.context.trace_id, link.context.span_id) == (
        int("0a" * 16, 16),
        int("0b" * 8, 16),
    )


def test_each_rank_has_a_resource_of_its_own(run: Run) -> None:
    ranks = {span.resource.attributes.get("dl.rank") for span in handed(run)}
    instances = {span.resource.attributes["service.instance.id"] for span in handed(run)}
    assert (ranks, len(instances)) == ({None, 0, 1}, 3)


def test_the_console_exporter_prints_every_span(run: Run) -> None:
    printed = io.StringIO()
    count = otel_sdk.export(run, ConsoleSpanExporter(out=printed))
    one_line = re.split(r"(?<=^\})\n", printed.getvalue(), flags=re.MULTILINE)
    spans = [json.loads(text) for text in one_line if text.strip()]
    assert len(spans) == count
    assert {"train_step", "train_run", "all_reduce"} <= {span["name"] for span in spans}


class Recording(SpanExporter):
    """Takes batches; those at some places fail as told."""

    def __init__(self, *outcomes: object) -> None:
        self.sizes: list[int] = []
        self.outcomes = list(outcomes)
        self.is_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(len(spans))
        outcome = self.outcomes.pop(0) if self.outcomes else SpanExportResult.SUCCESS
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, SpanExportResult)
        return outcome

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[Run]:
    built = RunBuilder(world_size=1)
    for number in range(1200):
        built.span(0, "user", 10**18 + number, 10**18 + number + 1, step=number // 500)
    with open_run(write_run(built, tmp_path / "run")) as opened:
        yield opened


def test_batches_are_as_large_as_the_sdks_own(long_run: Run) -> None:
    exporter = Recording()
    count = otel_sdk.export(long_run, exporter)
    assert set(exporter.sizes[:-1]) == {512}
    assert sum(exporter.sizes) == count >= 1200
    assert not exporter.is_shut_down


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (SpanExportResult.FAILURE, "it said so, and not why"),
        (OSError("no route\nto host"), "OSError: no route to host"),
    ],
)
def test_a_batch_that_fails_is_counted_and_does_not_stop_the_rest(
    long_run: Run, outcome: object, reason: str
) -> None:
    exporter = Recording(SpanExportResult.SUCCESS, outcome)
    with pytest.raises(TracekitError) as raised:
        otel_sdk.export(long_run, exporter)
    assert sum(exporter.sizes) >= 1200
    said = f"Recording did not take 512 of {sum(exporter.sizes):,} spans: {reason}"
    assert str(raised.value) == said


def test_an_interrupt_is_not_taken_for_a_failure(long_run: Run) -> None:
    class Interrupted(Recording):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        otel_sdk.export(long_run, Interrupted())


def test_steps_can_be_chosen(run: Run) -> None:
    steps = set(steps_of(handed(run, otel_sdk.Choice(first_step=1, last_step=1))))
    assert steps == {1}
    with pytest.raises(UsageError, match="nothing in --steps"):
        otel_sdk.export(run, InMemorySpanExporter(), otel_sdk.Choice(first_step=9))


def steps_of(spans: Iterable[ReadableSpan]) -> Iterator[object]:
    return ((span.attributes or {}).get("dl.iteration") for span in spans)


def test_the_examples_in_the_documentation_run(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "opentelemetry-sdk.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert len(examples) == 3
    printed = ""
    for example in examples:
        done = subprocess.run(
            [sys.executable, "-c", example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    assert printed.count('"name": "train_step"') == 3
    with open_run(tmp_path / "runs" / "with-otel") as run:
        rows = [row for row in run.table("spans").to_pylist() if row["name"] == "GET /shard"]
    assert [(row["step"], row["lane"]) for row in rows] == [
        (number, "otel:my.dataset") for number in range(3)
    ]
