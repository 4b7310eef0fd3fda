"""Protobuf and JSON say the same, whatever the values; attributes of any kind give valid output."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.exporters.otlp.readback import values_of
from tests.exporters.runs import write_run
from tracekit.dataset import open_run
from tracekit.exporters import otlp
from tracekit.exporters._otel.proto import MOST_BYTES, encode, requests
from tracekit.exporters._otel.spans import OtelSpan, Portion, Shared
from tracekit.exporters._otel.traces import Traces
from tracekit.testing.builder import RunBuilder

EDGES = [-(1 << 63), (1 << 63) - 1, 1 << 63, -1, 0]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from(EDGES),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20).map(lambda data: data.decode("latin-1")),
)
NAMES = st.one_of(st.sampled_from(["dl.iteration", "tracekit.kind", "a", ""]), st.text(max_size=8))


@st.composite
def any_run(draw: st.DrawFn) -> RunBuilder:
    """Two ranks, a step, and spans with names, times, texts and attributes of all sorts."""
    built = RunBuilder(2)
    built.step()
    for _ in range(draw(st.integers(0, 6))):
        rank, start = draw(st.integers(0, 1)), draw(st.integers(-5, 1 << 62))
        attributes = draw(st.dictionaries(NAMES, SCALARS, max_size=5))
        built.span(
            rank,
            draw(st.sampled_from(["user", "comm", "step", "data"])),
            start,
            start + draw(st.integers(-9, 1 << 40)),
            name=draw(st.text(max_size=9)),
            step=draw(st.one_of(st.none(), st.integers(0, 2))),
            parent=draw(st.one_of(st.none(), st.integers(1, 20))),
            is_open=draw(st.booleans()),
            status=draw(st.sampled_from(["ok", "error", None])),
            attributes=[(name, json.dumps(value)) for name, value in attributes.items()],
        )
        built.event(rank, draw(st.text(max_size=5)), draw(st.floats()), text=draw(st.text()))
    return built


def plain(value: dict[str, Any]) -> object:
    """A value of OTLP JSON as Python has it."""
    ((kind, held),) = value.items()
    return int(held) if kind == "intValue" else held


def of_json(lines: bytes) -> dict[Any, Any]:
    """Every span of the file by its ids."""
    found = {}
    for line in lines.splitlines():
        (of_resource,) = json.loads(line)["resourceSpans"]
        resource = {a["key"]: plain(a["value"]) for a in of_resource["resource"]["attributes"]}
        for span in of_resource["scopeSpans"][0]["spans"]:
            found[span["traceId"], span["spanId"], resource["service.instance.id"]] = {
                "parent": span.get("parentSpanId", ""),
                "name": span["name"],
                "times": (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])),
                "attributes": {a["key"]: plain(a["value"]) for a in span["attributes"]},
                "keys": len(span["attributes"]),
                "resource": resource,
                "error": span["status"].get("code", 0) == 2,
                "kind": (span["kind"], span["flags"]),
                "events": [
                    (
                        event["name"],
                        int(event["timeUnixNano"]),
                        {a["key"]: plain(a["value"]) for a in event["attributes"]},
                    )
                    for event in span.get("events", [])
                ],
                "links": [(link["traceId"], link["spanId"]) for link in span.get("links", [])],
            }
    return found


def of_protobuf(data: bytes) -> dict[Any, Any]:
    found = {}
    for of_resource in ExportTraceServiceRequest.FromString(data).resource_spans:
        resource = values_of(of_resource.resource.attributes)
        for span in of_resource.scope_spans[0].spans:
            key = span.trace_id.hex(), span.span_id.hex(), resource["service.instance.id"]
            found[key] = {
                "parent": span.parent_span_id.hex(),
                "name": span.name,
                "times": (span.start_time_unix_nano, span.end_time_unix_nano),
                "attributes": values_of(span.attributes),
                "keys": len(span.attributes),
                "resource": resource,
                "error": span.status.code == 2,
                "kind": (span.kind, span.flags),
                "events": [
                    (event.name, event.time_unix_nano, values_of(event.attributes))
                    for event in span.events
                ],
                "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            }
    return found


@given(built=any_run())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_both_forms_decode_to_the_same_spans(built: RunBuilder, tmp_path_factory: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("run")
    file = io.BytesIO()
    with open_run(write_run(built, folder / "run")) as run:
        count = otlp.export_json(Traces(run), file)
        data = encode([portion for portions in Traces(run) for portion in portions], "1")
    text, binary = of_json(file.getvalue()), of_protobuf(data)
    assert text == binary
    assert len(text) == count
    assert count >= len(built.spans)
    for span in text.values():
        assert span["keys"] == len(span["attributes"])  # no name twice
        assert span["name"]
        start, end = span["times"]
        assert 0 <= start <= end < 1 << 63
        for value in span["attributes"].values():
            assert isinstance(value, (str, bool, int, float))
            assert not isinstance(value, float) or math.isfinite(value)


def test_requests_are_cut_at_a_size_and_lose_nothing() -> None:
    shared = Shared(bytes(16), "x" * 1000)
    spans = [OtelSpan(shared, n.to_bytes(8, "big"), b"", n, n) for n in range(5000)]
    portions = [Portion((("dl.rank", rank),), spans) for rank in range(2)]
    sent = list(requests(portions, "1"))
    assert [count for _, count in sent] == [
        sum(
            len(of_scope.spans)
            for of_resource in ExportTraceServiceRequest.FromString(data).resource_spans
            for of_scope in of_resource.scope_spans
        )
        for data, _ in sent
    ]
    assert sum(count for _, count in sent) == 10_000
    assert len(sent) > 2
    assert all(len(data) < 1.5 * MOST_BYTES for data, _ in sent)
    assert list(requests([], "1")) == []
