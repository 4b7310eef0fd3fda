"""A run as traces: one a step with all ranks, waits and links, one root, within a budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.exporters.otlp.readback import ReadSpan, spans_of
from tests.exporters.runs import write_run
from tracekit.dataset import open_run
from tracekit.exporters._otel.proto import encode
from tracekit.exporters._otel.spans import run_trace_id
from tracekit.exporters._otel.traces import Traces
from tracekit.exporters.chrome_trace import Choice
from tracekit.model import Correction, span_id, step_trace_id
from tracekit.testing.builder import RunBuilder
from tracekit.testing.parallel import ParallelBuilder

MS = 1_000_000


@dataclass
class Exported:
    """Each trace as a server has it."""

    traces: list[list[ReadSpan]]
    sizes: list[int]
    folded: int

    def step(self, number: int) -> list[ReadSpan]:
        return self.trace(step_trace_id("run", 0, number))

    def trace(self, id_: bytes) -> list[ReadSpan]:
        (found,) = (trace for trace in self.traces if trace[0].trace_id == id_.hex())
        return found


def exported(built: RunBuilder, folder: Path, **options: Any) -> Exported:
    with open_run(write_run(built, folder / "run")) as run:
        traces = Traces(run, **options)
        encoded = [encode(portions, "1") for portions in traces]
    read = [spans_of(ExportTraceServiceRequest.FromString(data)) for data in encoded]
    return Exported(read, [len(data) for data in encoded], traces.folded)


def named(spans: list[ReadSpan], name: str) -> list[ReadSpan]:
    return [span for span in spans if span.name == name]


def by_rank(spans: list[ReadSpan], name: str) -> dict[Any, ReadSpan]:
    return {span.resource["dl.rank"]: span for span in named(spans, name)}


def test_a_step_is_one_trace_of_all_ranks_under_one_root(tmp_path: Path) -> None:
    built = RunBuilder(4)
    built.steps(3, forward={2: 20.0})
    whole = exported(built, tmp_path)
    assert len(whole.traces) == 4  # three steps and the run
    for number in range(3):
        spans = whole.step(number)
        (root,) = [span for span in spans if not span.parent_id]
        assert root.name == "step"
        assert root.attributes["dl.iteration"] == number
        assert {span.trace_id for span in spans} == {root.trace_id}
        ids = {span.span_id for span in spans}
        assert len(ids) == len(spans)
        assert all(span.parent_id in ids for span in spans if span is not root)
        assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in spans)
        tops = by_rank(spans, "train_step")
        assert sorted(tops) == [0, 1, 2, 3]
        assert {top.parent_id for top in tops.values()} == {root.span_id}
        assert all(
            span.parent_id == tops[rank].span_id for rank, span in by_rank(spans, "forward").items()
        )


def test_ids_and_times_are_those_that_everybody_can_predict(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.steps(2)
    whole = exported(built, tmp_path)
    found = {
        (span.trace_id, span.span_id, span.name, span.start_ns, span.end_ns)
        for trace in whole.traces
        for span in trace
        if "dl.rank" in span.resource and span.name != "train_run"
    }
    assert found == {
        (
            step_trace_id("run", 0, row["step"]).hex(),
            span_id("run", 0, row["rank"], row["span_id"]).hex(),
            row["name"],
            row["start_ns"],
            row["start_ns"] + row["duration_ns"],
        )
        for row in built.spans
    }


def test_the_one_who_came_last_is_linked_from_all_who_waited(tmp_path: Path) -> None:
    built = RunBuilder(4, transfer=1.0)
    built.step(backward={2: 50.0})
    spans = exported(built, tmp_path).step(0)
    reduced = by_rank(spans, "all_reduce")
    late = reduced[2]
    assert late.links == ()
    assert late.attributes["tracekit.wait_ns"] == 0
    assert late.attributes["tracekit.lateness_ns"] == 30 * MS
    for rank in (0, 1, 3):
        of = reduced[rank]
        assert of.links == ((late.trace_id, late.span_id),)
        assert of.attributes["tracekit.wait_ns"] == 30 * MS
        assert of.attributes["tracekit.last_rank"] == 2
        assert of.attributes["tracekit.transfer_ns"] == late.attributes["tracekit.transfer_ns"]
        parts = ("tracekit.wait_ns", "tracekit.transfer_ns")
        assert sum(int(str(of.attributes[part])) for part in parts) == of.end_ns - of.start_ns
    (root,) = named(spans, "step")
    assert root.attributes["tracekit.last_rank"] == 2
    assert root.attributes["tracekit.step.skew_ns"] == 30 * MS


def test_who_receives_waits_for_the_root_and_the_root_for_nobody(tmp_path: Path) -> None:
    built = RunBuilder(3)
    start = built.now[0]
    for rank, late in ((0, 5 * MS), (1, 0), (2, 9 * MS)):
        built.collective(rank, "broadcast", 1, start + late, start + 10 * MS, step=0, peer_rank=0)
    found = by_rank(exported(built, tmp_path).step(0), "broadcast")
    waited = {rank: span.attributes["tracekit.wait_ns"] for rank, span in found.items()}
    assert waited == {0: 0, 1: 5 * MS, 2: 0}
    assert found[1].links == ((found[0].trace_id, found[0].span_id),)
    assert (found[0].links, found[2].links) == ((), ())
    assert all("tracekit.lateness_ns" not in span.attributes for span in found.values())


def test_between_two_clocks_and_where_a_member_is_missing_nobody_is_called_late(
    tmp_path: Path,
) -> None:
    two = RunBuilder(4, hosts=("a", "b"))
    two.step(backward={2: 50.0})
    missing = RunBuilder(4)
    missing.step(backward={2: 50.0})
    missing.spans = [row for row in missing.spans if row["rank"] != 3]
    for name, built in (("two", two), ("missing", missing)):
        spans = exported(built, tmp_path / name).step(0)
        assert named(spans, "all_reduce")
        for span in spans:
            assert not {"tracekit.wait_ns", "tracekit.lateness_ns"} & set(span.attributes)
            if span.name != "step":
                assert span.links == ()


def test_corrections_put_hosts_on_one_clock_and_are_said(tmp_path: Path) -> None:
    plain = RunBuilder(4, hosts=("a", "b"), domains=("one", "one"))
    plain.step(backward={2: 50.0})
    moved = RunBuilder(4, hosts=("a", "b"))
    moved.step(backward={2: 50.0})
    for row in moved.spans:
        row["start_ns"] -= 7 * MS * (row["rank"] // 2)
    fixed = Correction(-(1 << 62), 1 << 62, moved.now[0], 7 * MS, 0.0, 900.0)
    choice = Choice(corrections={0: [], 1: [], 2: [fixed], 3: [fixed]})
    expected = exported(plain, tmp_path / "plain").step(0)
    found = exported(moved, tmp_path / "moved", choice=choice).step(0)
    by_id = {span.span_id: span for span in expected}
    for span in found:
        same = by_id[span.span_id]
        assert (span.start_ns, span.attributes, span.links) == (
            same.start_ns,
            same.attributes,
            same.links,
        )
        if span.resource.get("dl.rank") in (2, 3):
            assert span.resource["tracekit.clock.offset_ns"] == 7 * MS
            assert span.resource["tracekit.clock.error_ns"] == 900
        else:
            assert "tracekit.clock.offset_ns" not in span.resource


def test_only_whom_the_analysis_accuses_is_marked_as_a_straggler(tmp_path: Path) -> None:
    built = RunBuilder(4)
    built.steps(2, forward={2: 20.0})
    plain = exported(built, tmp_path / "plain")
    assert not any("straggler" in key for s in plain.step(0) for key in s.attributes)
    spans = exported(built, tmp_path / "marked", stragglers={2: "forward"}).step(1)
    marked = {
        span.resource["dl.rank"]: span.attributes["tracekit.straggler_cause"]
        for span in spans
        if span.attributes.get("tracekit.straggler") is True
    }
    assert marked == {2: "forward"}
    assert named(spans, "step")[0].attributes["tracekit.step.stragglers"] == "2"


def test_events_stand_on_the_step_of_their_rank_or_on_the_run(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    built.event(1, "loss", 0.5, step=0)
    built.event(1, "loss", float("nan"), step=0, text="a text", attributes=[("k", "3")])
    built.event(0, "note", step=None)
    whole = exported(built, tmp_path)
    assert by_rank(whole.step(0), "train_step")[1].events == ("loss", "loss")
    run = whole.trace(run_trace_id("run", 0))
    assert by_rank(run[1:], "train_run")[0].events == ("note",)


def test_the_run_s_own_trace_holds_what_is_in_no_step_and_leads_to_the_steps(
    tmp_path: Path,
) -> None:
    built = RunBuilder(2)
    built.span(0, "init", built.now[0] - 5 * MS, built.now[0], "init_process_group")
    built.steps(3)
    whole = exported(built, tmp_path)
    run = whole.trace(run_trace_id("run", 0))
    root, *others = run
    assert (root.name, root.parent_id) == ("train_run", "")
    tops = by_rank(others, "train_run")
    assert {top.parent_id for top in tops.values()} == {root.span_id}
    (init,) = named(run, "init_process_group")
    assert init.parent_id == tops[0].span_id
    steps = [named(whole.step(number), "step")[0] for number in range(3)]
    assert root.links == tuple((step.trace_id, step.span_id) for step in steps)
    assert all(step.links == ((root.trace_id, root.span_id),) for step in steps)


def test_with_chosen_steps_nothing_else_is_exported(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.span(0, "init", built.now[0], built.now[0] + MS)
    built.steps(5)
    whole = exported(built, tmp_path, choice=Choice(1, 2))
    assert [trace[0].trace_id for trace in whole.traces] == [
        step_trace_id("run", 0, number).hex() for number in (1, 2)
    ]


def test_a_shift_moves_every_time_and_is_said_in_the_resource(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    built.event(1, "note", step=0)
    plain = exported(built, tmp_path / "plain").step(0)
    moved = exported(built, tmp_path / "moved", shift_ns=7).step(0)
    for before, after in zip(plain, moved, strict=True):
        assert (after.start_ns, after.end_ns) == (before.start_ns + 7, before.end_ns + 7)
        assert after.resource["tracekit.time_shift_ns"] == 7
        assert (after.span_id, after.events) == (before.span_id, before.events)


def test_the_resource_says_who_a_rank_is_and_the_user_adds_to_it(tmp_path: Path) -> None:
    built = ParallelBuilder(dp=2, pp=2)
    built.step()
    given = {"deployment.environment": "lab", "service.name": "mine", "dl.rank": "7"}
    spans = exported(built, tmp_path, given=given).step(0)
    for rank, span in by_rank(spans, "train_step").items():
        resource = span.resource
        assert (resource["service.name"], resource["deployment.environment"]) == ("mine", "lab")
        assert (resource["dl.rank"], resource["dl.world_size"]) == (rank, 4)
        assert resource["host.name"] == "node-0"
        assert resource["tracekit.run.id"] == "run"
    instances = {span.resource["service.instance.id"] for span in spans}
    assert len(instances) == 5  # four ranks, and the root that is no rank's


def test_a_thousand_ranks_fit_into_the_budget_of_a_trace(tmp_path: Path) -> None:
    built = RunBuilder(
        1000, buckets=50, hosts=[f"node-{i}" for i in range(125)], domains=["c"] * 125
    )
    built.step(backward={700: 90.0})
    whole = exported(built, tmp_path, choice=Choice(max_spans=10_000_000))
    spans = whole.step(0)
    assert len(spans) <= 10_000
    assert whole.sizes[0] < 5_000_000
    per_rank = Counter(span.resource.get("dl.rank") for span in spans)
    assert len(per_rank) == 1001
    full = sum(row["rank"] == 700 for row in built.spans)
    assert (per_rank[0], per_rank[8], per_rank[700]) == (full, full, full)
    assert per_rank[1] < full
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    assert all(span.parent_id in ids for span in spans if span.name != "step")
    (root,) = named(spans, "step")
    assert root.attributes["tracekit.folded.spans"] == whole.folded > 0


def test_folded_collectives_say_how_many_how_long_and_how_much(tmp_path: Path) -> None:
    built = RunBuilder(4, buckets=10)
    built.step()
    spans = exported(built, tmp_path, budget=45).step(0)
    whole = [s for s in named(spans, "all_reduce") if s.resource["dl.rank"] == 0]
    (folded,) = [s for s in named(spans, "all_reduce") if s.resource["dl.rank"] == 1]
    assert folded.attributes["tracekit.folded.count"] == len(whole) == 10
    mine = [row for row in built.spans if row["name"] == "all_reduce" and row["rank"] == 1]
    lengths = [row["duration_ns"] for row in mine]
    assert folded.attributes["tracekit.folded.total_ns"] == sum(lengths)
    assert folded.attributes["tracekit.folded.longest_ns"] == max(lengths)
    sizes = [row["collective_bytes"] for row in mine]
    assert folded.attributes["tracekit.collective.bytes"] == sum(sizes)
    assert folded.start_ns == min(row["start_ns"] for row in mine)


@pytest.mark.parametrize("budget", [5, 6, 20, 30, 60])
def test_whatever_the_budget_a_trace_keeps_it(tmp_path: Path, budget: int) -> None:
    built = RunBuilder(8, buckets=3)
    built.step()
    spans = exported(built, tmp_path, budget=budget).step(0)
    assert len(spans) <= budget
    ids = {span.span_id for span in spans}
    assert all(span.parent_id in ids for span in spans if span.name != "step")


def test_one_attempt_is_not_taken_for_another(tmp_path: Path) -> None:
    built = RunBuilder(1, attempt=1)
    built.step()
    with open_run(write_run(built, tmp_path / "run")) as run:
        (portions, _) = list(Traces(run))
    assert portions[0].spans[0].shared.trace_id == step_trace_id("run", 1, 0)
