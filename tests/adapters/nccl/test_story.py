"""A slow link among 512 ranks: a rank falls behind, its logs say why, pairs confirm it.

The text logs of all ranks and NCCL's debug logs are read together; then the output of the runs that
the verdict asked for.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nccl.logs import ranks, write
from tests.adapters.nccl.test_nccl_tests import pair
from tests.cli.conftest import Call

PER_HOST, SLOW = 8, 137
CHECKPOINT = 30


def text_log(rank: int, lag_s: float) -> str:
    """Steps of 2 s without a date; from the checkpoint on, late by so much."""
    lines = []
    for step in range(2 * CHECKPOINT):
        at = 36_000 + 2.0 * step + 0.01 * (rank % 7) + (lag_s if step >= CHECKPOINT else 0.0)
        hours, rest = divmod(at, 3600)
        said = f"step {step} loss {2.0 / (step + 1):.3f}"
        text = "saving checkpoint to /ckpt/last" if step == CHECKPOINT else said
        lines.append(f"RANK {rank} {int(hours):02d}:{int(rest // 60):02d}:{rest % 60:06.3f} {text}")
    return "\n".join(lines) + "\n"


def build(folder: Path, world: int, late: int | None, slow: int | None) -> None:
    """Both logs of every rank. Each process sees all cards of its host and uses one of them."""
    folder.mkdir()
    for rank in range(world):
        (folder / f"rank{rank}.log").write_text(text_log(rank, 40.0 if rank == late else 0.0))
    job = ranks(world, PER_HOST)
    for one in job:
        there = slow is not None and one.node == slow // PER_HOST
        bad = slow % PER_HOST if slow is not None and there else None
        speeds = [100 if card == bad else 200_000 for card in range(PER_HOST)]
        one.begin("2.27.3", cards=PER_HOST).cards(*speeds)
        one.connect(f"NET/IB/{one.local}/GDRDMA", channels=1).done().calls(3)
    write(folder, job)


def analyzed(call: Call, *paths: Path) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(call("analyze", *paths, "--format", "json").out)
    return shown


def alarms(shown: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in shown["findings"] if one["severity"] != "info"]


def pairs(hosts: list[str], slow: str | None, busbw: float = 0.011) -> str:
    """What nccl-tests prints for all pairs of these hosts."""
    return "".join(
        pair(one, two, busbw if slow in (one, two) else 24.1)
        for one, two in itertools.combinations(hosts, 2)
    )


def hosts_asked_for(finding: dict[str, Any]) -> list[str]:
    """The hosts of the pairs in the advised command."""
    command = next(advice for advice in finding["advice"] if "all_reduce_perf" in advice)
    found = re.search(r"for p in ([\w, ]+); do mpirun -np 2 -H \$p", command)
    assert found is not None, command
    return list(dict.fromkeys(found[1].replace(" ", ",").split(",")))


def test_one_late_rank_of_512_its_link_and_the_measurement_become_one_verdict(
    tmp_path: Path, call: Call
) -> None:
    logs = tmp_path / "logs"
    build(logs, 512, SLOW, SLOW)
    shown = analyzed(call, logs)
    (finding,) = alarms(shown)
    assert (shown["symptom"], finding["id"]) == ("slow", "comm.slow_nic")
    assert (finding["ranks"], finding["severity"]) == ([SLOW], "critical")
    assert finding["certainty"] == "likely"
    assert f"rank {SLOW} is 40.0 s behind" in finding["title"]
    assert "saving checkpoint" in finding["title"]
    assert "mlx5_1, port 1, on node17 (rank 137) came up at 100 Mb/s" in finding["title"]
    assert "200 Gb/s" in finding["title"]
    lines = finding["evidence"]["lines"]
    assert lines[0] == f"{logs}/rank137.log:31: saving checkpoint to /ckpt/last"
    assert lines[1].startswith(f"{logs}/node17.400")

    hosts = hosts_asked_for(finding)
    assert hosts[0] == "node17"
    assert len(hosts) == 4
    command = next(advice for advice in finding["advice"] if "all_reduce_perf" in advice)
    assert "NCCL_IB_HCA==mlx5_1:1 all_reduce_perf -b 1G -e 1G" in command
    assert f"tracekit analyze {logs} pairs.txt" in command

    measured = tmp_path / "pairs.txt"
    measured.write_text(pairs(hosts, "node17"))
    shown = analyzed(call, logs, measured)
    (finding,) = alarms(shown)
    assert (finding["id"], finding["ranks"]) == ("comm.slow_nic", [SLOW])
    assert finding["certainty"] == "proven"
    assert "moves at most 0.011 GB/s" in finding["title"]
    assert "others reach 24.1" in finding["title"]
    assert finding["evidence"]["measured"]["verdict"] == "confirmed"
    assert not any("mpirun" in advice for advice in finding["advice"])


@pytest.mark.parametrize(
    ("hosts", "slow", "certainty", "words"),
    [
        (["node3", "node0", "node1"], None, "cannot_tell", "moves 24.1 GB/s as others do"),
        (["node3", "node0"], "node3", "likely", "came up at"),  # which of the two it is stays open
        (["node4", "node0", "node1"], "node4", "likely", "came up at"),
    ],
    ids=["as fast as others", "one pair alone", "of other hosts"],
)
def test_a_measurement_that_does_not_confirm_raises_no_certainty(
    hosts: list[str], slow: str | None, certainty: str, words: str, tmp_path: Path, call: Call
) -> None:
    build(tmp_path / "logs", 64, 25, 25)
    (tmp_path / "pairs.txt").write_text(pairs(hosts, slow))
    shown = analyzed(call, tmp_path)
    (finding,) = [one for one in alarms(shown) if one["id"] == "comm.slow_nic"]
    assert (finding["ranks"], finding["certainty"]) == ([25], certainty)
    assert words in finding["title"]


@pytest.mark.parametrize(
    ("late", "slow", "ids"),
    [
        (None, None, []),
        (40, 25, [("comm.slow_nic", [25]), ("straggler.rank", [40])]),
        (25, None, [("straggler.rank", [25])]),
    ],
    ids=["healthy", "another rank is late", "no link is slow"],
)
def test_a_late_rank_and_a_link_that_is_not_its_own_stay_apart(
    late: int | None, slow: int | None, ids: list[Any], tmp_path: Path, call: Call
) -> None:
    build(tmp_path / "logs", 64, late, slow)
    found = alarms(analyzed(call, tmp_path / "logs"))
    assert [(one["id"], one["ranks"]) for one in found] == ids
