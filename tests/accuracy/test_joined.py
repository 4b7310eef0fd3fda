"""Several sources, one event: one verdict, whatever is given and in whichever order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.accuracy.scenes import TERMINATED, Scene, alerts
from tests.adapters.nccl.logs import ranks as processes
from tests.adapters.text_logs.logs import elastic, progress, traceback, watchdog

OOM = "Out of memory: Killed process 1002 (python) total-vm:90000000kB, anon-rss:80000000kB\n"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
RETRY = (
    "NET/IB : Got completion from peer 10.0.0.3<40000> with status=12 opcode=0 len=0 vendor err 129"
    " (Send) hca mlx5_0"
)
LIMIT = (
    "slurmstepd: error: *** JOB 77 ON node-0 CANCELLED AT 2026-03-04T12:10:00 DUE TO TIME"
    " LIMIT ***\n"
)


def killed(folder: Path) -> Scene:
    """The kernel killed rank 2; all others lost it and were asked to end."""
    scene = Scene(folder)
    scene.run.die(2, end_state={"state": "vanished"}, others=TERMINATED)
    scene.journal()
    scene.dumps({0: 101, 1: 101, 3: 101})
    text = progress(range(4)) + scene.lost((0, 1))
    text += "".join(watchdog(rank, 101) for rank in (0, 1, 3))
    scene.text("job.log", text)
    scene.text("launcher.log", elastic({0: -15, 1: -15, 2: -9, 3: -15}, first=0))
    scene.text("dmesg.txt", "Nov 14 22:13:30 node-0 kernel: [912.4] " + OOM)
    return scene


def saving(folder: Path) -> Scene:
    """Rank 3 saves since 14 minutes; rank 0 gave up waiting."""
    scene = Scene(folder)
    scene.run.hang(
        3, kind="checkpoint", seconds=840, stack=("/job/save.py:17 write", "/job/train.py:3 main"),
        second_stack=("/job/save.py:19 flush", "/job/train.py:3 main"),
    )  # fmt: skip
    scene.journal()
    scene.dumps({0: 101, 1: 101, 2: 101, 3: 100})
    scene.text("rank0.log", progress((0,)) + watchdog(0, 101))
    return scene


def unreachable(folder: Path) -> Scene:
    """All are in one all-reduce; the card of rank 1 gets no answer from rank 2's host."""
    scene = Scene(folder)
    run, start, end = scene.run, scene.now, scene.now + 600_000_000_000
    for rank in range(4):
        run.span(rank, "step", start, end, "train_step", 20, is_open=True)
        run.collective(rank, "all_reduce", 101, start + 1000, end, step=20, is_open=True)
        run.fact("heartbeat", end, rank)
    run.now = [end] * 4
    scene.journal()
    scene.dumps(dict.fromkeys(range(4), 101))
    scene.text("job.log", progress(range(4)) + "".join(watchdog(rank, 101) for rank in range(4)))
    scene.nccl({1: RETRY})
    return scene


def test_a_rank_that_the_kernel_killed_is_the_one_cause(tmp_path: Path) -> None:
    told = killed(tmp_path).told()
    assert told["symptom"] == "oom"
    assert alerts(told) == [("killed_oom", [2], "proven")]
    finding = told["findings"][0]
    assert finding["id"] == "crash.killed"
    assert any("dmesg.txt:1: " in line for line in finding["lines"])
    effects = {one["class"] for one in finding["evidence"]["effects"]}
    assert effects & {"timed_out", "rank_missing"}
    assert finding["next"]


def test_without_the_kernels_line_only_the_signal_is_told(tmp_path: Path) -> None:
    told = killed(tmp_path).told(but=["dmesg.txt"])
    assert told["symptom"] == "crash"
    assert alerts(told) == [("killed_signal", [2], "proven")]


def test_without_anybodys_word_it_vanished_and_nobody_knows_how(tmp_path: Path) -> None:
    told = killed(tmp_path).told(but=["dmesg.txt", "launcher.log"])
    assert alerts(told) == [("vanished", [2], "cannot_tell")]


def test_a_process_of_the_same_pid_on_another_host_is_not_the_rank(tmp_path: Path) -> None:
    scene = Scene(tmp_path, hosts=("node-0", "node-1"))
    scene.run.die(2, end_state={"state": "vanished"}, others=TERMINATED)
    scene.journal()
    scene.text("dmesg.txt", "Nov 14 22:13:30 node-0 kernel: [912.4] " + OOM)
    assert ("killed_oom", [2], "proven") not in alerts(scene.told())


def test_a_rank_that_saves_is_told_with_its_frame_and_who_waits_is_not(tmp_path: Path) -> None:
    told = saving(tmp_path).told()
    assert told["symptom"] == "hang"
    assert alerts(told) == [("rank_busy", [3], "proven")]
    finding = told["findings"][0]
    assert finding["id"] == "hang.busy_rank"
    assert "/job/save.py:19 flush" in finding["title"]
    assert [one["source"] for one in finding["evidence"]["agree"]] == ["dumps"]
    assert [one["class"] for one in finding["evidence"]["effects"]] == ["timed_out"]


def test_dumps_alone_are_likely_and_certain_beside_watchdogs(tmp_path: Path) -> None:
    scene = saving(tmp_path)
    assert alerts(scene.told(but=["journal"])) == [("rank_missing", [3], "likely")]
    lines = "".join(watchdog(rank, 101) for rank in (0, 1, 2))
    scene.text("job.log", progress(range(4)) + lines)
    told = scene.told(but=["journal", "rank0.log"])
    assert alerts(told) == [("rank_missing", [3], "proven")]


def test_one_ranks_timeout_alone_accuses_nobody(tmp_path: Path) -> None:
    told = saving(tmp_path).told(but=["journal", "dumps"])
    assert [one[2] for one in alerts(told)] == ["cannot_tell"]


def fallen(folder: Path, address: str, per_host: int) -> Scene:
    """All ranks failed, the driver of host-b tells of a GPU, NCCL's log of each rank's address."""
    scene = Scene(folder, hosts=("host-a", "host-b"))
    error = {"state": "exception", "type": "torch.distributed.DistBackendError",
             "message": "NCCL error in: x.cpp:1, unhandled system error"}  # fmt: skip
    scene.run.die(0, end_state=error, others=error)
    scene.journal()
    scene.text("host-b-dmesg.txt", "[ 9123.4] " + XID.replace("0000:3b:00", address))
    for process in processes(4, per_host):
        lost = process.healthy().warn("Call to recv failed : Connection reset by peer")
        scene.text(f"nccl.{process.rank}.log", "\n".join(lost.lines) + "\n")
    return scene


def test_a_gpu_that_failed_is_the_rank_s_whose_address_the_driver_names(tmp_path: Path) -> None:
    """Both hosts have GPUs at 01:00 and 02:00; the driver of one of them speaks."""
    told = fallen(tmp_path, "0000:02:00", per_host=2).told()
    assert alerts(told) == [("gpu_xid", [3], "proven")]


def test_an_address_without_a_host_tells_nobody_though_one_log_has_it(tmp_path: Path) -> None:
    """Only the log of rank 1 is there; the line may be of the other host, where rank 3 is."""
    scene = fallen(tmp_path, "0000:02:00", per_host=2)
    scene.text("dmesg.txt", "[ 9123.4] " + XID.replace("0000:3b:00", "0000:02:00"))
    told = scene.told(but=["host-b-dmesg.txt", "nccl.0.log", "nccl.2.log", "nccl.3.log"])
    assert not any(cause == "gpu_xid" and ranks for cause, ranks, _ in alerts(told))


@pytest.mark.parametrize(("address", "per_host"), [("0000:07:00", 2), ("0000:01:00", 1)])
def test_of_an_address_that_no_rank_or_several_have_no_rank_is_accused(
    tmp_path: Path, address: str, per_host: int
) -> None:
    told = fallen(tmp_path, address, per_host).told()
    assert alerts(told) == [("gpu_xid", [], "likely")]
    assert told["findings"][0]["evidence"]["candidates"] == [2, 3]


def test_a_gpu_that_fell_off_its_bus_explains_errors_everywhere(tmp_path: Path) -> None:
    scene = Scene(tmp_path, hosts=("host-a", "host-b"))
    error = {"state": "exception", "type": "torch.distributed.DistBackendError",
             "message": "NCCL error in: x.cpp:1, unhandled system error"}  # fmt: skip
    scene.run.die(0, end_state=error, others=error)
    scene.journal()
    scene.text("host-b-dmesg.txt", "[ 9123.4] " + XID)
    scene.nccl(dict.fromkeys(range(4), "Call to recv failed : Connection reset by peer"))
    told = scene.told()
    assert alerts(told) == [("gpu_xid", [], "likely")]
    assert told["findings"][0]["evidence"]["candidates"] == [2, 3]
    assert "host-b" in told["findings"][0]["title"]
    without = alerts(scene.told(but=["host-b-dmesg.txt"]))
    assert without
    assert all(sure == "cannot_tell" and not ranks for _, ranks, sure in without)


def test_the_scheduler_ended_the_job_and_nobody_is_at_fault(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for rank in range(4):
        scene.run.fact("end_state", TERMINATED, rank, time_ns=scene.run.now[rank])
    scene.journal()
    scene.text("slurm.out", LIMIT + elastic(dict.fromkeys(range(4), -15), first=0))
    told = scene.told()
    assert [(one[0], one[2]) for one in alerts(told)] == [("scheduler", "proven")]
    assert told["questions"]["lagging"] is None or "ended" not in told["questions"]["lagging"]
    assert [one[0] for one in alerts(scene.told(but=["slurm.out"]))] == ["terminated"]


def test_all_killed_at_once_accuse_none_of_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for rank in range(4):
        state = {"state": "signal", "signal": 9, "source": "pidfd"}
        scene.run.fact("end_state", state, rank, time_ns=scene.now + rank)
    scene.journal()
    assert alerts(scene.told()) == [("terminated", [0, 1, 2, 3], "likely")]
    scene.text("slurm.out", LIMIT)
    assert [one[0] for one in alerts(scene.told())] == ["scheduler"]


def test_a_network_that_lost_a_peer_explains_the_timeouts(tmp_path: Path) -> None:
    scene = unreachable(tmp_path)
    told = scene.told()
    assert [one[0] for one in alerts(told)] == ["net_retry"]
    finding = told["findings"][0]
    assert {one["class"] for one in finding["evidence"]["effects"]} == {"timed_out"}
    assert any("nccl.1.log:" in line for line in finding["lines"])
    names = [f"nccl.{rank}.log" for rank in range(4)]
    assert alerts(scene.told(but=names)) == [("timed_out", [], "cannot_tell")]


def test_sizes_that_differ_in_dumps_explain_the_hang(tmp_path: Path) -> None:
    scene = unreachable(tmp_path)
    scene.dumps(dict.fromkeys(range(4), 101), sizes={1: 4096})
    told = scene.told(but=[f"nccl.{rank}.log" for rank in range(4)])
    assert alerts(told) == [("mismatch", [1], "proven")]


def test_sources_that_name_different_ranks_are_never_both_sure(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run.hang(3, seconds=840)
    scene.journal()
    scene.dumps({0: 101, 1: 101, 3: 101, 2: 100}, looks=2)
    told = scene.told()
    assert [one[1:] for one in alerts(told)] == [([], "cannot_tell")]
    assert told["findings"][0]["evidence"]["candidates"] == [2, 3]
    assert "rank 3" in told["findings"][0]["title"]
    assert "rank 2" in told["findings"][0]["title"]
    assert told["findings"][0]["evidence"]["contradicts"][0]["ranks"] == [2]


def test_a_rank_that_left_its_epoch_early_is_told_with_its_batches(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for rank in range(4):
        scene.run.fact("sampler", {"samples": 640 if rank == 3 else 720}, rank)
        scene.run.fact("loader", {"batch_size": 10, "drop_last": True}, rank)
    scene.run.hang(3, seconds=840)
    scene.journal()
    told = scene.told()
    assert alerts(told) == [("uneven", [3], "likely")]
    assert told["findings"][0]["evidence"]["batches"] == {"0": 72, "1": 72, "2": 72, "3": 64}


def test_a_peer_that_was_killed_explains_that_it_does_not_answer(tmp_path: Path) -> None:
    scene = killed(tmp_path)
    scene.nccl({1: RETRY})
    told = scene.told()
    assert alerts(told) == [("killed_oom", [2], "proven")]
    assert "net_retry" in {one["class"] for one in told["findings"][0]["evidence"]["effects"]}


def test_an_error_of_its_own_says_why_a_rank_is_missing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    error = {"state": "exit", "code": 1, "source": "pidfd"}
    scene.run.die(1, end_state=error, others={**error, "state": "exit"})
    scene.journal()
    scene.dumps({0: 101, 2: 101, 3: 101})
    text = progress(range(4)) + traceback(1, "ValueError: bad sample 17", "data.py:12 load")
    scene.text("job.log", text + scene.lost((0, 2, 3)))
    told = scene.told()
    assert [one[:2] for one in alerts(told)] == [("error", [1])]
    assert "bad sample 17" in told["findings"][0]["title"]


def test_dumps_of_another_time_are_not_taken_for_this_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run.hang(3, seconds=840)
    later = scene.run.now
    scene.run.now = [time + 90_000_000_000_000 for time in later]
    scene.dumps({0: 101, 1: 101, 3: 101, 2: 100})
    scene.run.now = later
    scene.journal()
    told = scene.told()
    assert alerts(told) == [("rank_missing", [3], "proven")]
    assert any("another time" in one["reason"] for one in told["coverage"]["skipped"])


def test_healthy_ranks_beside_healthy_logs_stay_healthy(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run.end_cleanly()
    scene.journal()
    scene.text("job.log", progress(range(4)))
    scene.nccl({})
    scene.text("dmesg.txt", "Nov 14 22:13:30 node-0 kernel: [912.4] " + OOM.replace("1002", "77"))
    told = scene.told()
    assert told["symptom"] == "healthy"
    assert alerts(told) == []


@pytest.mark.parametrize("made", [killed, saving, unreachable])
def test_the_order_of_paths_changes_nothing(made: Callable[[Path], Scene], tmp_path: Path) -> None:
    scene = made(tmp_path)
    paths = list(scene.paths.values())
    first = verdict_of(scene.told(paths=paths))
    shuffled = Random(7)
    for _ in range(4):
        shuffled.shuffle(paths)
        assert verdict_of(scene.told(paths=paths)) == first


def verdict_of(told: Any) -> Any:
    keys = ("id", "class", "ranks", "certainty", "severity", "title", "lines", "advice")
    return told["symptom"], told["phase"], [[one[key] for key in keys] for one in told["findings"]]


def test_whatever_is_left_out_no_victim_is_ever_named(tmp_path: Path) -> None:
    """Of each subset of the sources: rank 2 is named or nobody is."""
    scene = killed(tmp_path)
    names = list(scene.paths)
    for chosen in range(1, 1 << len(names)):
        but = [name for place, name in enumerate(names) if not chosen >> place & 1]
        told = scene.told(but=but)
        for _, ranks, sure in alerts(told):
            assert sure == "cannot_tell" or ranks in ([2], []), (but, alerts(told))
