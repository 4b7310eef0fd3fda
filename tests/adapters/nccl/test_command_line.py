"""The same through ``tracekit analyze``, where all readers of logs look at the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapters.nccl import test_cases as cases
from tests.adapters.nccl.logs import Rank, ranks, write
from tests.cli.conftest import Call

HEALTHY = (
    cases.noisy, cases.bare, cases.ras, cases.consumer, cases.shutdown, cases.aborted,
    cases.dma_buf, cases.host_memory, cases.flushed, cases.far_card, cases.retried, cases.amd,
    cases.collnet, cases.old,
)  # fmt: skip


@pytest.mark.parametrize("scare", HEALTHY)
def test_no_reader_is_alarmed_by_a_healthy_log(
    scare: Callable[[Rank], None], tmp_path: Path, call: Call
) -> None:
    job = ranks(2)
    for rank in job:
        scare(rank)
    write(tmp_path, job)
    shown = json.loads(call("analyze", tmp_path, "--format", "json").out)
    assert shown["symptom"] == "healthy"
    assert [f["id"] for f in shown["findings"] if f["severity"] != "info"] == []


@pytest.mark.parametrize(
    ("case", "symptom"),
    [
        ("retry exceeded, new", "crash"),
        ("GPU memory", "oom"),
        ("shm", "crash"),
        ("sizes", "hang"),
        ("versions", "crash"),
    ],
)
def test_the_symptom_and_the_rank_come_first(
    case: str, symptom: str, tmp_path: Path, call: Call
) -> None:
    message, place, id_, cause = cases.FAILED[case]
    job = ranks(2)
    job[0].begin()
    job[1].begin().warn(message, place)
    write(tmp_path, job)
    done = call("analyze", tmp_path, "--format", "json", "--fail-on", "critical")
    shown = json.loads(done.out)
    first = shown["findings"][0]
    assert (done.code, shown["symptom"], first["id"]) == (1, symptom, id_)
    assert (first["ranks"], first["evidence"]["class"]) == ([1], cause)


def test_a_log_of_nccl_among_lines_of_a_training_is_read_for_both(
    tmp_path: Path, call: Call
) -> None:
    job = ranks(2)
    lines = []
    for rank in job:
        lines += rank.healthy().lines
    lines.append(
        "[rank0]:[E807 12:34:56.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught"
        " collective operation timeout: WorkNCCL(SeqNum=335, OpType=ALLREDUCE, NumelIn=1,"
        " NumelOut=1, Timeout(ms)=600000) ran for 600089 milliseconds before timing out."
    )
    lines += ["step 7 loss 2.1"] * 20
    lines += job[1].warn("Cuda failure 2 'out of memory'", "include/alloc.h:187").lines[-1:]
    write(tmp_path, "\n".join(lines) + "\n")
    shown = json.loads(call("analyze", tmp_path, "--format", "json").out)
    first = shown["findings"][0]
    assert (shown["symptom"], first["id"], first["ranks"]) == ("oom", "crash.oom", [1])
    assert [one["source"] for one in first["evidence"]["effects"]] == ["logs"]  # rank 0 waited
