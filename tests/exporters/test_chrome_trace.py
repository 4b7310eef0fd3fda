"""A Chrome trace holds every span with its exact times, well nested, and arrows to who waited."""

from __future__ import annotations

import json
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exporters.runs import Chrome, any_spans, exported, not_text, overlaps, write_run
from tracekit.dataset import write_table
from tracekit.errors import UsageError
from tracekit.exporters.chrome_trace import Choice, _micros
from tracekit.testing.builder import RunBuilder

US = 1000
MS = 1_000_000


def well_nested(trace: Chrome) -> bool:
    return all(
        overlaps([(start, end) for start, end, _ in slices]) == []
        for slices in trace.tracks().values()
    )


def test_each_rank_is_a_process_named_with_its_host(tmp_path: Path) -> None:
    built = RunBuilder(4, hosts=("node-a", "node-b"))
    built.step()
    names = exported(built, tmp_path).names("process_name")
    assert names == {
        1: "rank 0 (node-a)",
        2: "rank 1 (node-a)",
        3: "rank 2 (node-b)",
        4: "rank 3 (node-b)",
    }


def test_every_span_is_there_with_exact_times(tmp_path: Path) -> None:
    built = RunBuilder(3, jitter=0.3, batchnorm=True, buckets=3)
    built.steps(4)
    trace = exported(built, tmp_path)
    shown = sorted(
        (e["pid"] - 1, e["args"]["span_id"], start, end - start, e["name"], e["cat"])
        for slices in trace.tracks().values()
        for start, end, e in slices
    )
    assert shown == sorted(
        (s["rank"], s["span_id"], s["start_ns"], s["duration_ns"], s["name"], s["kind"])
        for s in built.spans
    )
    for event in trace.slices:
        start, duration = event["args"]["start_ns"], event["args"]["duration_ns"]
        assert trace.base + int(event["ts"] * 1000) == start  # cut off, as Perfetto does
        assert int(event["dur"] * 1000) == duration


@given(st.integers(0, 10**15))
def test_microseconds_give_the_nanoseconds_back(ns: int) -> None:
    micros = _micros(ns)
    assert int(micros * 1000) == round(micros * 1000) == ns


def test_what_a_phase_contains_stands_inside_of_it(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.steps(2)
    trace = exported(built, tmp_path)
    assert well_nested(trace)
    main = trace.tracks()[1, 1]
    assert trace.names("thread_name")[1] == "MainThread"
    assert [event["name"] for _, _, event in main[:6]] == [
        "train_step", "data_wait", "forward", "backward", "all_reduce", "optimizer_step",
    ]  # fmt: skip


def test_communication_in_the_background_has_a_track_and_sub_tracks(tmp_path: Path) -> None:
    built = RunBuilder(1)
    parent = built.span(0, "backward", 0, 100 * US)
    for start, end in ((10, 50), (20, 40), (60, 90)):
        built.collective(0, "all_reduce", start, start * US, end * US, lane="group:g",
                         parent=parent)  # fmt: skip
    trace = exported(built, tmp_path)
    names = trace.names("thread_name")
    places = {event["ts"]: names[event["tid"]] for event in trace.slices}
    assert places == {0: "MainThread", 10: "group g", 20: "group g (2)", 60: "group g"}


def test_spans_that_overlap_on_a_thread_are_parted_with_their_children(tmp_path: Path) -> None:
    built = RunBuilder(1)
    built.span(0, "io", 0, 100 * US, "first")
    second = built.span(0, "io", 50 * US, 150 * US, "second")
    built.span(0, "user", 60 * US, 70 * US, "inner", parent=second)
    trace = exported(built, tmp_path)
    assert well_nested(trace)
    tids = {event["name"]: event["tid"] for event in trace.slices}
    assert tids["first"] != tids["second"] == tids["inner"]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(built=any_spans())
def test_nothing_overlaps_on_any_track(
    tmp_path_factory: pytest.TempPathFactory, built: RunBuilder
) -> None:
    trace = exported(built, tmp_path_factory.mktemp("odd"))
    assert len(trace.slices) == len(built.spans)
    assert well_nested(trace)


def test_arrows_lead_from_the_last_to_those_who_waited(tmp_path: Path) -> None:
    built = RunBuilder(4)
    built.step(forward={2: 30})
    built.step(forward={1: 30})
    trace = exported(built, tmp_path)
    starts = {event["id"]: event for event in trace.events("s")}
    ends = trace.events("f")
    assert len(starts) == len(ends) == 6
    for end in ends:
        begin = starts[end["id"]]
        source, target = trace.at(begin)[-1], trace.at(end)[-1]
        assert source["name"] == target["name"] == "all_reduce"
        assert source["args"]["collective_seq"] == target["args"]["collective_seq"]
        assert source["args"]["start_ns"] > target["args"]["start_ns"]
    assert sorted((starts[e["id"]]["pid"] - 1, e["pid"] - 1) for e in ends) == [
        (1, 0), (1, 2), (1, 3), (2, 0), (2, 1), (2, 3),
    ]  # fmt: skip


def test_an_arrow_ends_in_a_mark_that_did_not_begin_before_it(tmp_path: Path) -> None:
    built = RunBuilder(3)
    built.step(forward={2: 30})
    trace = exported(built, tmp_path)
    starts = {event["id"]: event["ts"] for event in trace.events("s")}
    for end, mark in zip(trace.events("f"), trace.marks, strict=True):
        place = operator.itemgetter("pid", "tid", "ts")
        assert place(end) == place(mark)
        assert starts[end["id"]] == mark["ts"]
        assert (mark["name"], int(mark["dur"] * 1000)) == ("rank 2 came", 1)
        (inside,) = [
            (start, stop)
            for start, stop, event in trace.tracks()[mark["pid"], mark["tid"]]
            if event["name"] == "all_reduce"
        ]
        time = trace.base + round(mark["ts"] * 1000)
        assert inside[0] < time < inside[1]


def arrows_of(built: RunBuilder, folder: Path, **chosen: Any) -> list[tuple[int, int]]:
    trace = exported(built, folder, Choice(**chosen))
    source = {event["id"]: event["pid"] - 1 for event in trace.events("s")}
    return sorted((source[event["id"]], event["pid"] - 1) for event in trace.events("f"))


def test_receivers_wait_for_the_root_and_not_the_root_for_them(tmp_path: Path) -> None:
    built = RunBuilder(3)
    for rank, start in enumerate((5, 1, 9)):
        built.collective(rank, "broadcast", 1, start * MS, 10 * MS, peer_rank=0)
    assert arrows_of(built, tmp_path) == [(0, 1)]


def test_the_root_of_a_reduction_waits_for_the_last_member(tmp_path: Path) -> None:
    built = RunBuilder(3)
    for rank, start in enumerate((1, 5, 7)):
        built.collective(rank, "reduce", 1, start * MS, 10 * MS, peer_rank=0)
    assert arrows_of(built, tmp_path) == [(2, 0)]


def test_who_receives_waits_for_who_sends(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.collective(0, "recv", 1, MS, 10 * MS, peer_rank=1)
    built.collective(1, "send", 1, 6 * MS, 10 * MS, peer_rank=0)
    assert arrows_of(built, tmp_path) == [(1, 0)]


def test_short_waits_have_no_arrow(tmp_path: Path) -> None:
    built = RunBuilder(2, transfer=1.0)
    built.step(forward={1: 10.2})
    assert arrows_of(built, tmp_path / "long", min_wait_ns=300 * US) == []
    assert arrows_of(built, tmp_path / "short", min_wait_ns=100 * US) == [(1, 0)]


def test_of_too_many_waits_the_longest_have_arrows(tmp_path: Path) -> None:
    built = RunBuilder(3)
    built.step(forward={1: 20})
    built.step(forward={2: 40})
    assert arrows_of(built, tmp_path, max_arrows=2) == [(2, 0), (2, 1)]


def test_a_rank_that_never_came_leaves_nobody_accused(tmp_path: Path) -> None:
    built = RunBuilder(4)
    built.hang(2)
    trace = exported(built, tmp_path)
    assert trace.events("s") == []
    still = [event for event in trace.slices if event["args"].get("is_open")]
    assert {event["name"] for event in still} >= {"train_step", "forward", "all_reduce"}
    assert well_nested(trace)


def test_between_two_clocks_there_is_no_late_rank(tmp_path: Path) -> None:
    built = RunBuilder(4, hosts=("a", "b"))
    built.step(forward={2: 30})
    trace = exported(built, tmp_path)
    assert trace.events("s") == []
    assert trace.events("C") == []


def test_counters_show_values_and_lateness(tmp_path: Path) -> None:
    built = RunBuilder(3, backward=20.0)
    built.step(backward={1: 26})
    built.event(0, "loss", 0.5)
    trace = exported(built, tmp_path)
    loss = trace.events("C", name="loss")
    assert [(event["pid"], event["args"]) for event in loss] == [(1, {"value": 0.5})]
    late = trace.events("C", name="lateness in group 0, ms")
    assert {event["pid"] - 1: event["args"]["value"] for event in late} == {0: -3, 1: 6, 2: -3}


def test_lateness_is_told_where_most_was_waited_for_in_a_step(tmp_path: Path) -> None:
    built = RunBuilder(2)
    for seq, (step, second) in enumerate([(0, 2), (0, 6), (0, 3), (1, 1)]):
        start = 100 * seq * MS
        for rank, arrival in enumerate((0, second)):
            end = start + 10 * MS
            built.collective(rank, "barrier", seq, start + arrival * MS, end, step=step)
    late = exported(built, tmp_path).events("C", pid=2)
    assert [event["args"]["value"] for event in late] == [6, 1]


def test_a_loss_that_is_no_number_is_shown_as_a_word(tmp_path: Path) -> None:
    built = RunBuilder(1)
    for value in (float("nan"), float("inf"), 1.5):
        built.event(0, "loss", value)
    trace = exported(built, tmp_path)
    assert [e["args"]["value"] for e in trace.events("i")] == ["nan", "inf"]
    assert [e["args"]["value"] for e in trace.events("C")] == [1.5]
    assert trace.names("thread_name") == {trace.events("i")[0]["tid"]: "events"}


ODD = {
    "text": json.dumps('a "quoted" },{"ph":"X"} \u2028 \x00 text'),
    "float": "1.5",
    "whole": "5.0",
    "large": str(2**64 - 1),
    "larger": "9" * 40,
    "flag": "true",
    "nothing": "null",
    "nan": '"NaN"',
    "bare": "NaN",
    "huge": "1e999",
    "list": "[1, 2]",
    "broken": "{",
    "half": '"\\ud800"',
    "": "7",
}


def test_attributes_of_any_kind_are_valid(tmp_path: Path) -> None:
    built = RunBuilder(1)
    built.span(0, "user", 1, 2, "odd", attributes=list(ODD.items()))
    built.span(0, "user", 2, 3, "none")
    built.span(0, "user", 3, 4, "line\nand \u0000", attributes=[("n", "1")])
    odd, none, _ = exported(built, tmp_path).slices
    assert "attributes" not in none["args"]
    shown = odd["args"]["attributes"]
    assert shown["text"] == 'a "quoted" },{"ph":"X"} \u2028 \x00 text'
    assert (shown["float"], shown["flag"], shown["nothing"]) == (1.5, True, None)
    assert (shown["large"], shown[""]) == (2**64 - 1, 7)
    assert (shown["nan"], shown["bare"], shown["huge"]) == ("NaN", "NaN", "1e999")
    assert (shown["list"], shown["broken"], shown["half"]) == ("[1, 2]", "{", '"\\ud800"')


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    odd = b"a\xff\x00\xc3"
    built = RunBuilder(1)
    built.span(0, "user", 1, 2)
    spans = built.tables()["spans"]
    indices = pa.array([0], pa.int32())
    name = pa.DictionaryArray.from_arrays(indices, not_text(odd))
    attributes = pa.MapArray.from_arrays([0, 1], not_text(odd), not_text(b'"' + odd + b'"'))
    for column, values in (("name", name), ("lane", name), ("attributes", attributes)):
        place = spans.schema.get_field_index(column)
        spans = spans.set_column(place, spans.schema.field(column), values)
    write_table(tmp_path / "run", "spans", spans)
    (event,) = exported(tmp_path / "run", tmp_path).slices
    assert event["name"] == "a\ufffd\x00\ufffd"
    assert event["args"]["attributes"] == {"a\ufffd\x00\ufffd": '"a\ufffd\x00\ufffd"'}


@pytest.mark.parametrize("start", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("duration", [-(2**63), 0, 2**63 - 1])
def test_times_at_the_edge_are_drawn_somehow(tmp_path: Path, start: int, duration: int) -> None:
    built = RunBuilder(1)
    built.span(0, "user", start, start)
    built.spans[-1]["duration_ns"] = duration
    (event,) = exported(built, tmp_path).slices
    assert event["args"]["start_ns"] == start
    assert event["args"]["duration_ns"] == duration
    assert (event["ts"], event["dur"] >= 0) == (0, True)


def test_a_span_that_lasts_less_than_nothing_keeps_what_was_recorded(tmp_path: Path) -> None:
    built = RunBuilder(1)
    built.span(0, "user", 5000, 3000, "backwards")
    (event,) = exported(built, tmp_path).slices
    assert (event["dur"], event["args"]["duration_ns"]) == (0, -2000)


def test_only_the_chosen_steps_are_shown(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.steps(6)
    built.span(0, "checkpoint", built.now[0], built.now[0] + MS)
    built.event(0, "loss", 1.0, step=5)
    whole = exported(built, tmp_path)
    assert [e["name"] for e in whole.slices if "step" not in e["args"]] == ["checkpoint"]
    part = exported(tmp_path / "run", tmp_path, Choice(2, 3))
    assert {event["args"].get("step") for event in part.slices} == {2, 3}
    assert part.events("C", name="loss") == []


def test_steps_that_are_not_there_are_refused(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.steps(3)
    with pytest.raises(UsageError, match=r"nothing in --steps 7:; the run has steps 0:2"):
        exported(built, tmp_path, Choice(first_step=7))


def test_too_many_spans_are_refused_with_the_steps_that_fit(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.steps(10)  # 12 spans each
    with pytest.raises(UsageError) as refused:
        exported(built, tmp_path, Choice(max_spans=40))
    assert "120 spans and events are more than --max-spans 40" in str(refused.value)
    assert "these steps fit: --steps 0:2 or --steps 7:9" in str(refused.value)
    run = tmp_path / "run"
    assert len(exported(run, tmp_path, Choice(0, 2, max_spans=40)).slices) == 36
    assert len(exported(run, tmp_path, Choice(7, 9, max_spans=40)).slices) == 36
    with pytest.raises(UsageError, match="step 0 alone has 12"):
        exported(run, tmp_path, Choice(max_spans=5))


def test_the_last_attempt_is_shown(tmp_path: Path) -> None:
    for attempt, steps in ((0, 3), (1, 1)):
        built = RunBuilder(1, attempt=attempt)
        built.steps(steps)
        exported(built, tmp_path)
    trace = exported(tmp_path / "run", tmp_path)
    assert trace.whole["otherData"]["attempt"] == 1
    assert {event["args"]["step"] for event in trace.slices} == {0}


def test_a_run_without_spans_is_an_empty_timeline(tmp_path: Path) -> None:
    trace = exported(RunBuilder(2), tmp_path)
    assert trace.slices == []
    assert trace.names("process_name") == {1: "rank 0 (node-0)", 2: "rank 1 (node-0)"}


def test_the_base_install_is_enough(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    run = write_run(built, tmp_path / "run")
    code = f"""
import io, pathlib, sys
for extra in ("duckdb", "perfetto", "rich", "torch", "typer"):
    sys.modules[extra] = None
from tracekit.dataset import open_run
from tracekit.exporters import chrome_trace, perfetto
with open_run(pathlib.Path({str(run)!r})) as run:
    print(chrome_trace.export(run, io.BytesIO()).spans)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("12\n", "")
