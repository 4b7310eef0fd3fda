"""NCCL's Inspector: who comes last by the shortest part, which communicator is slow, odd files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tracekit.adapters.nccl_inspector._records import Counts, read_records
from tracekit.adapters.nccl_inspector._sums import Sums
from tracekit.dataset import open_run
from tracekit.dataset.engine import DuckDB

MIB = 1 << 20
BEGAN_US = 1_770_000_000_000_000


def record(
    rank: int, number: int, took_us: int, *, op: str = "AllReduce", nbytes: int = 64 * MIB,
    ranks: int = 4, comm: str = "0x7f8c01", version: str = "v4.2", begin_us: int | None = None,
    source: str | None = "kernel_gpu", place: int | None = None, per_host: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """A collective that a rank completed; ``place`` is which process of the job it is."""
    process = rank if place is None else place
    body = {
        "coll": op, "coll_algo": "RING", "coll_proto": "SIMPLE", "coll_sn": number,
        "coll_msg_size_bytes": nbytes, "coll_exec_time_us": took_us,
        "coll_algobw_gbs": nbytes / took_us / 1e3, "coll_busbw_gbs": "nan",
    }  # fmt: skip
    if source is not None:
        body["coll_timing_source"] = source
    if begin_us is not None:
        kernels = [
            {"channel_id": channel, "kernel_start_ts": begin_us + channel,
             "kernel_stop_ts": begin_us + took_us, "kernel_record_ts": begin_us + took_us}
            for channel in range(2)
        ]  # fmt: skip
        body["event_trace_ts"] = {"coll_start_ts": begin_us, "kernel_events": kernels}
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": version, "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": BEGAN_US,
            "hostname": f"node{process // per_host}", "pid": 700 + process,
        },
        "coll_perf": body,
    }  # fmt: skip


def marked(records: Sequence[Mapping[str, Any]], dropped: int = 0) -> list[dict[str, Any]]:
    """The same in format 4.3: a marker says whose the records after it are."""
    stats = {"coll_records": len(records), "coll_dropped_total": dropped, "p2p_records": 0}
    about = {**records[0]["metadata"], "inspector_output_format_version": "v4.3"}
    marker = {"header": records[0]["header"], "metadata": about, "dump_stats": stats}
    return [marker, *({"coll_perf": one["coll_perf"]} for one in records)]


def write(folder: Path, by_rank: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
    for rank, records in by_rank.items():
        lines = "".join(json.dumps(one) + "\n" for one in records)
        (folder / f"node-pid{700 + rank}.log").write_text(lines)


def calls(took: Mapping[int, int], count: int = 40, **more: Any) -> dict[int, list[dict[str, Any]]]:
    """So many calls, in which each rank's part takes so long; a little more in every other one."""
    return {
        rank: [record(rank, n, us + n % 2, ranks=len(took), **more) for n in range(count)]
        for rank, us in took.items()
    }


def analyzed(folder: Path, call: Call) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(call("analyze", folder, "--format", "json").out)
    return shown


def alarms(shown: dict[str, Any]) -> list[tuple[str, list[int], str]]:
    return [
        (one["id"], one["ranks"], one["certainty"])
        for one in shown["findings"] if one["severity"] != "info"
    ]  # fmt: skip


FORMATS: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "4.0": lambda records: [
        {**one, "coll_perf": {k: v for k, v in one["coll_perf"].items() if k != "coll_algo"}}
        for one in records
    ],
    "4.2": lambda records: records,
    "4.3": marked,
}


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_the_rank_with_the_shortest_part_comes_last(
    form: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], tmp_path: Path, call: Call
) -> None:
    took = {0: 9800, 1: 9790, 2: 1200, 3: 9810}
    write(tmp_path, {rank: form(records) for rank, records in calls(took).items()})
    shown = analyzed(tmp_path, call)
    assert alarms(shown) == [("straggler.rank", [2], "likely")]
    first = shown["findings"][0]
    assert "rank 2 comes last to all_reduces of 4 ranks" in first["title"]
    assert "takes 1.20 ms, the others' 9.80" in first["title"]
    assert first["lost_ms"] == pytest.approx(40 * 8.6, rel=0.01)
    assert first["evidence"]["lines"][0].startswith(f"{tmp_path}/node-pid702.log:")


def test_bandwidth_is_that_of_nccl_tests_without_the_wait_and_with_it(
    tmp_path: Path, call: Call
) -> None:
    write(tmp_path, calls({0: 9800, 1: 9790, 2: 1200, 3: 9810}))
    (row,) = analyzed(tmp_path, call)["collectives"]
    assert (row["op"], row["group_size"], row["source"]) == ("all_reduce", 4, "nccl_inspector")
    assert row["bytes"] == 40 * 64 * MIB
    assert row["algbw_gbs"] == pytest.approx(64 * MIB / 1200.5 / 1e3)
    assert row["busbw_gbs"] == pytest.approx(row["algbw_gbs"] * 1.5)
    assert row["busbw_with_wait_gbs"] < 0.2 * row["busbw_gbs"]
    assert row["call_ms"] == pytest.approx(9.8, rel=0.01)


def test_the_text_report_has_both_bandwidths(tmp_path: Path, call: Call) -> None:
    write(tmp_path, calls({0: 9800, 1: 9790, 2: 1200, 3: 9810}))
    out = call("analyze", tmp_path).out
    (row,) = [line for line in out.splitlines() if line.strip().startswith("all_reduce")]
    assert row.split() == ["all_reduce", "7f8c01", "4", "40", "67.1", "MB", "9.8", "83.9", "10.3"]
    assert "with the wait" in out


@pytest.mark.parametrize(
    ("op", "parts", "factor"),
    [("AllReduce", 1, 1.5), ("AllGather", 4, 0.75), ("ReduceScatter", 4, 0.75),
     ("AlltoAll", 4, 0.75)],
)  # fmt: skip
def test_sizes_of_parts_count_for_all_ranks(
    op: str, parts: int, factor: float, tmp_path: Path, call: Call
) -> None:
    write(tmp_path, calls(dict.fromkeys(range(4), 1000), op=op))
    (row,) = analyzed(tmp_path, call)["collectives"]
    assert row["algbw_gbs"] == pytest.approx(parts * 64 * MIB / 1000.5 / 1e3)
    assert row["busbw_gbs"] == pytest.approx(row["algbw_gbs"] * factor)


@pytest.mark.parametrize(
    "took",
    [
        {0: 9800, 1: 9790, 2: 9700, 3: 9810},
        {0: 4800, 1: 5100, 2: 4200, 3: 5600},
    ],
    ids=["alike", "a little apart"],
)
def test_parts_that_are_alike_accuse_nobody(
    took: dict[int, int], tmp_path: Path, call: Call
) -> None:
    write(tmp_path, calls(took))
    shown = analyzed(tmp_path, call)
    assert (shown["symptom"], alarms(shown)) == ("healthy", [])


def test_another_rank_is_last_each_time_and_nobody_is_accused(tmp_path: Path, call: Call) -> None:
    write(
        tmp_path,
        {
            rank: [record(rank, n, 1200 if n % 4 == rank else 9800) for n in range(80)]
            for rank in range(4)
        },
    )
    assert alarms(analyzed(tmp_path, call)) == []


def test_the_root_of_a_broadcast_is_not_accused_of_a_short_part(tmp_path: Path, call: Call) -> None:
    write(tmp_path, calls({0: 300, 1: 9790, 2: 9800, 3: 9810}, op="Broadcast"))
    shown = analyzed(tmp_path, call)
    assert alarms(shown) == []
    assert shown["collectives"][0]["busbw_gbs"] is None  # what of it is waiting is not known


def test_times_of_the_hosts_calls_tell_nothing(tmp_path: Path, call: Call) -> None:
    write(tmp_path, calls({0: 9800, 1: 9790, 2: 1200, 3: 9810}, source="collective_cpu"))
    done = call("analyze", tmp_path, "--format", "json")
    assert done.code == 2
    assert "no collective with a time of the GPU" in done.err


@pytest.mark.parametrize(("later", "found"), [(8600, "likely"), (0, None)])
def test_on_one_host_the_begin_of_the_kernel_must_agree(
    later: int, found: str | None, tmp_path: Path, call: Call
) -> None:
    took = {0: 9800, 1: 9790, 2: 1200, 3: 9810}
    write(
        tmp_path,
        {
            rank: [
                record(rank, n, us, per_host=8, begin_us=BEGAN_US + n * 20_000
                       + (later if rank == 2 else 0))
                for n in range(40)
            ]
            for rank, us in took.items()
        },
    )  # fmt: skip
    shown = analyzed(tmp_path, call)
    assert alarms(shown) == ([("straggler.rank", [2], found)] if found else [])


def test_traces_become_spans(tmp_path: Path, call: Call) -> None:
    records = {
        rank: [record(rank, n, 500, per_host=8, begin_us=BEGAN_US + n * 1000) for n in range(3)]
        for rank in range(4)
    }
    write(tmp_path, records)
    run = tmp_path / "run"
    assert call("import", tmp_path, "-o", run).code == 0
    with open_run(run) as opened, DuckDB() as engine:
        engine.register("spans", opened.sources["spans"])
        rows = engine.sql("SELECT * FROM spans").to_pylist()
    assert len(rows) == 12
    first = min(rows, key=lambda row: (row["rank"], row["start_ns"]))
    assert (first["start_ns"], first["duration_ns"]) == (BEGAN_US * 1000, 500_000)
    assert (first["collective_op"], first["collective_seq"]) == ("all_reduce", 0)


def test_a_communicator_that_moves_less_than_others_of_its_kind_is_named(
    tmp_path: Path, call: Call
) -> None:
    by_rank: dict[int, list[dict[str, Any]]] = calls(dict.fromkeys(range(8), 3000), per_host=8)
    for number in range(4):  # four pairs of ranks, the last one over a slow link
        took = 12_000 if number == 3 else 3000
        for rank in range(2):
            place = 2 * number + rank
            by_rank[place] += [
                record(rank, n, took, ranks=2, comm=f"0xbe{number}", place=place, per_host=8)
                for n in range(40)
            ]
    write(tmp_path, by_rank)
    shown = analyzed(tmp_path, call)
    assert alarms(shown) == [("comm.bandwidth", [], "likely")]
    first = shown["findings"][0]
    assert first["evidence"]["group_ranks"] == [6, 7]
    assert "which of its links is slow cannot be told" in first["title"]


def test_a_rank_whose_records_end_early_is_a_remark(tmp_path: Path, call: Call) -> None:
    records = calls(dict.fromkeys(range(4), 1000))
    del records[3][-2:]
    write(tmp_path, records)
    shown = analyzed(tmp_path, call)
    assert alarms(shown) == []
    assert any("records of rank 3 end with AllReduce 37" in f["title"] for f in shown["findings"])


# Bad input


def test_lines_that_are_cut_or_belong_to_nobody_are_counted_and_named(
    tmp_path: Path, call: Call
) -> None:
    records = calls(dict.fromkeys(range(4), 1000))
    write(tmp_path, records)
    path = tmp_path / "node-pid701.log"
    orphan = json.dumps({"coll_perf": records[1][0]["coll_perf"]})
    path.write_text(orphan + "\n" + path.read_text()[:-40])
    shown = analyzed(tmp_path, call)
    (skipped,) = map(str, shown["coverage"]["skipped"])
    assert str(path) in skipped
    assert "2 lines not used; line 1: a record of which nothing tells whose" in skipped


def test_what_the_plug_in_overwrote_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    records = calls({0: 10, 1: 10})[0]
    lines = [*marked(records[:3], dropped=100), *marked(records[3:6], dropped=250)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    counts = Counts()
    assert len(list(read_records(path, counts))) == 6
    assert (counts.dropped, counts.versions) == (250, {"v4.3"})


@pytest.mark.parametrize(
    "junk",
    ['{"header": 3, "metadata": {}, "coll_perf": {}}', '{"header": {}, "coll_perf": 1}', "[1]",
     '{"coll_perf": {"coll": 1}}', "\0\0", '{"header": {"id": 1, "rank": 9, "n_ranks": 2}}',
     "{" * 5000],
)  # fmt: skip
def test_junk_is_counted(junk: str, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(junk + "\n" + json.dumps(record(0, 1, 10)) + "\n")
    counts = Counts()
    assert len(list(read_records(path, counts))) == 1


def test_of_many_records_every_rank_keeps_the_same_sample(tmp_path: Path) -> None:
    path, sums = tmp_path / "a.log", Sums()
    for rank in range(4):
        one = record(rank, 0, 10)
        path.write_text(json.dumps(one) + "\n")
        (first,) = read_records(path, Counts())
        for number in range(60_000):
            sums.add(replace(first, number=number), str(path))
    kept = sums.groups["7f8c01"].kept
    assert 10_000 < len(kept) <= 40_000
    assert all(len(ranks) == 4 for ranks in kept.values())
