"""Tables of nccl-tests of all releases become rows; the host that slow pairs share is named."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.adapters.nccl.logs import ranks
from tests.adapters.nccl.logs import write as write_logs
from tests.cli.conftest import Call
from tracekit.adapters.nccl_tests import read_runs, recognize

OLD = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   2619 on      nodeA device  0 [0x01] NVIDIA A100
#   Rank  1 Pid   2620 on      nodeA device  1 [0x41] NVIDIA A100
#   Rank  2 Pid   2621 on      nodeB device  0 [0x01] NVIDIA A100
#   Rank  3 Pid   2622 on      nodeB device  1 [0x41] NVIDIA A100
#
#                                             out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144   float     sum    51.20   20.48   30.72  0e+00    50.10   20.93   31.39  0e+00
node0:1:2 [0] NCCL INFO Launch mode Parallel
[1,0]<stdout>:  1073741824     268435456   float     sum    22000   48.81   73.21    N/A    21990   48.83   73.24    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 52.14
"""  # noqa: E501
NEW = """\
# nccl-tests version 2.17.6 nccl-headers=22907 nccl-library=22907
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   2619 on      nodeA device  0 [0000:01:00] NVIDIA H100
#  Rank  1 Group  0 Pid   2620 on      nodeB device  0 [0000:41:00] NVIDIA H100
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
  1073741824     134217728     float    none      -1    22000   48.81   24.40      0    21990   48.83   24.41      3
# Out of bounds values : 1 FAILED
# Avg bus bandwidth    : 24.41
# Collective test concluded: all_gather_perf
"""  # noqa: E501


def write(folder: Path, text: str, name: str = "tests.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_old_table_is_read_between_the_lines_of_others(tmp_path: Path) -> None:
    path = write(tmp_path, OLD)
    assert recognize(path.read_bytes())
    (run,) = read_runs(path)
    value = run.value()
    assert (value["test"], value["ranks"], value["hosts"]) == ("all_reduce", 4, ["nodeA", "nodeB"])
    assert [row["size"] for row in value["rows"]] == [1048576, 1073741824]
    first = value["rows"][0]
    assert (first["redop"], first["root"], first["type"]) == ("sum", None, "float")
    assert first["in_place"] == {
        "time_us": 50.1, "algbw_gbs": 20.93, "busbw_gbs": 31.39, "wrong": 0,
    }  # fmt: skip
    assert value["rows"][1]["out_of_place"]["wrong"] is None
    assert (value["busbw_gbs"], value["average_busbw_gbs"]) == (73.24, 52.14)
    assert run.largest_line == 14


def test_the_new_table_has_roots_and_counts_wrong_values(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path, NEW))
    value = run.value()
    assert (value["test"], value["version"], value["library"]) == ("all_gather", "2.17.6", "22907")
    assert (value["rows"][0]["redop"], value["rows"][0]["root"]) == ("none", -1)
    assert value["wrong"] == 3


@pytest.mark.parametrize(
    ("line", "busbw", "root"),
    [
        ("  1024 256 float 4.5 0.23 0.40 0e+00 4.4 0.23 0.41 0e+00", 0.40, None),
        ("  1024 256 float 0 4.5 0.23 0.40 0e+00 4.4 0.23 0.41 0e+00", 0.40, 0),
        ("  1024 256 float sum 2 4.5 0.23 0.40 0 4.4 0.23 0.41 0 2025-01-02 03:04:05", 0.40, 2),
        (
            "1024 256 half sum -1 4.5 0.2 0.4 0 1 2 3 4% 4.4 0.2 0.41 0 1 2 3 4%".replace("%", ""),
            0.4, -1,
        ),
        ("3:   1024 256 bfloat16 sum -1 4.5 0.23 0.40 N/A 4.4 0.23 0.41 N/A", 0.40, -1),
    ],
)  # fmt: skip
def test_rows_of_every_shape(line: str, busbw: float, root: int | None, tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path, f"# nThread 1 nGpus 1\n{line}\n"))
    assert run.rows[0]["out_of_place"]["busbw_gbs"] == busbw
    assert run.rows[0]["root"] == root


@pytest.mark.parametrize(
    "line", ["1024 256", "1024 256 lorem 1 2 3 4 5 6 7 8", "a b c", "1 2 float x y z 0 1 2 3 4", ""]
)
def test_what_is_no_row_is_passed_over(line: str, tmp_path: Path) -> None:
    assert read_runs(write(tmp_path, f"# nThread 1 nGpus 1\n{line}\n")) == []


def test_json_of_it_is_read(tmp_path: Path) -> None:
    told = {
        "version": "2.17.6", "nccl_version": 22907, "config": {},
        "args": ["./build/all_reduce_perf", "-J", "x"],
        "devices": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}],
        "results": [{"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": -1,
                     "out_of_place": {"time": 5.0, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0}}],
    }  # fmt: skip
    (run,) = read_runs(write(tmp_path, json.dumps(told)))
    assert (run.test, run.hosts, run.value()["busbw_gbs"]) == ("all_reduce", ["a", "b"], 1.5)


def pair(one: str, two: str, busbw: float) -> str:
    return (
        "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1\n"
        f"#  Rank  0 Group  0 Pid   1 on      {one} device  0 [0000:01:00] H100\n"
        f"#  Rank  1 Group  0 Pid   2 on      {two} device  0 [0000:01:00] H100\n"
        f" 1073741824 268435456 float sum -1 22000 {busbw} {busbw} 0 21990 {busbw} {busbw} 0\n"
    )


def test_the_host_that_all_slow_pairs_have_is_named(tmp_path: Path, call: Call) -> None:
    hosts = ["n641", "n642", "n643", "n644"]
    text = "".join(
        pair(one, two, 49.0 if "n644" in (one, two) else 88.0)
        for one, two in itertools.combinations(hosts, 2)
    )
    write(tmp_path, text)
    shown = json.loads(call("analyze", str(tmp_path), "--format", "json").out)
    finding = next(f for f in shown["findings"] if f["id"] == "comm.bandwidth")
    assert finding["evidence"]["hosts"] == ["n644"]
    assert finding["certainty"] == "likely"
    assert finding["title"].startswith("n644 is slow in all_reduce: all 3 slow pairs of 6")


def test_pairs_that_share_no_host_leave_it_undecided(tmp_path: Path, call: Call) -> None:
    write(tmp_path, pair("a", "b", 88.0) + pair("c", "d", 88.0) + pair("e", "f", 40.0))
    shown = json.loads(call("analyze", str(tmp_path), "--format", "json").out)
    finding = next(f for f in shown["findings"] if f["id"] == "comm.bandwidth")
    assert (finding["certainty"], finding["evidence"]["hosts"]) == ("cannot_tell", ["e", "f"])


def test_equal_pairs_are_no_finding(tmp_path: Path, call: Call) -> None:
    write(tmp_path, pair("a", "b", 88.0) + pair("a", "c", 86.0) + pair("b", "c", 90.0))
    shown = json.loads(call("analyze", str(tmp_path), "--format", "json").out)
    assert [f for f in shown["findings"] if f["severity"] != "info"] == []


@pytest.mark.parametrize("slow", [True, False])
def test_a_host_that_runs_over_sockets_is_told_with_what_that_costs(
    tmp_path: Path, call: Call, slow: bool
) -> None:
    job = ranks(4)
    for rank in job:
        socket = rank.rank == 1
        rank.begin(network="Socket" if socket else "IB")
        rank.connect("NET/Socket/0" if socket else "NET/IB/0/GDRDMA").done()
    write_logs(tmp_path, job)
    hosts = [f"node{number}" for number in range(4)]
    text = "".join(
        pair(one, two, 5.0 if slow and "node1" in (one, two) else 25.0)
        for one, two in itertools.combinations(hosts, 2)
    )
    write(tmp_path, text)
    shown = json.loads(call("analyze", str(tmp_path), "--format", "json").out)
    (finding,) = [f for f in shown["findings"] if f["severity"] != "info"]
    assert (finding["id"], finding["ranks"]) == ("comm.socket_fallback", [1])
    said = "all_reduce runs at 5 GB/s with it and at 25 between the others, 5.0 times as fast"
    assert (said in finding["title"]) is slow
    assert finding["evidence"]["measured"]["verdict"] == ("confirmed" if slow else "denied")
