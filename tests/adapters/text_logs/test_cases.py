"""Hangs and crashes as public reports have them: the culprit is named, and no victim is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.text_logs.logs import (
    alerts,
    c10,
    dump_signal,
    elastic,
    first_errors,
    progress,
    traceback,
    verdict,
    watchdog,
)


def test_the_rank_that_wrote_no_timeout_is_the_missing_one(tmp_path: Path) -> None:
    """One rank skipped a sample: it is one collective behind and silent."""
    text = progress(range(4)) + "".join(
        watchdog(rank, 101, op="_ALLGATHER_BASE") for rank in (0, 1, 3)
    )
    result = verdict(tmp_path, text + dump_signal(2, 100, 100))
    assert alerts(result) == [("hang.missing_rank", (2,), "likely")]
    assert result.symptom == "hang"
    assert "all_gather 101" in result.findings[0].title
    assert "step 4" in result.findings[0].title  # its last line


def test_a_rank_alone_in_a_call_too_many_accuses_nobody(tmp_path: Path) -> None:
    text = progress(range(4)) + "[rank1]: training finished\n" + watchdog(0, 501, numel=1)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.missing_rank", (0,), "cannot_tell")]
    assert "one call more" in result.findings[0].title
    assert "crash" not in {finding.id.partition(".")[0] for finding in result.findings}


@pytest.mark.parametrize(
    "last",
    [
        "Saving checkpoint to /ckpt/step-900",
        "Map (num_proc=8):  43%|####      | 43000/100000",
        "Running evaluation on 2000 samples",
        "INFO Tokenizing the data set",
    ],
)
def test_a_rank_that_saves_tokenizes_or_evaluates_is_busy(tmp_path: Path, last: str) -> None:
    text = progress(range(4)) + f"[rank0]: 2026-03-04 12:00:10,000 {last}\n"
    text += "".join(watchdog(rank, 2, numel=306_176, ms=1_200_000) for rank in (1, 2, 3))
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.busy_rank", (0,), "likely")]
    assert last in result.findings[0].title
    errors = first_errors(result).evidence["first_errors"]
    assert errors[0] == {"rank": 0, "error": None, "waits": False}


def test_a_rank_that_left_the_epoch_early_is_the_missing_one(tmp_path: Path) -> None:
    text = progress(range(7)) + "[rank6]: epoch 1 finished after 3 batches\n"
    text += "".join(watchdog(rank, 30) for rank in range(6))
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.missing_rank", (6,), "likely")]
    assert "epoch 1 finished after 3 batches" in result.findings[0].title


FINGERPRINT = (
    "Detected mismatch between collectives on ranks. Rank {a} is running collective:"
    " CollectiveFingerPrint(SequenceNumber=40, OpType=BROADCAST, TensorShape=[{x}],"
    " TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)),{cut}"
    " but Rank {b} is running collective: CollectiveFingerPrint(SequenceNumber=40,"
    " OpType=BROADCAST, TensorShape=[{y}], TensorDtypes=Float).Collectives differ in the following"
    " aspects: \t Tensor Tensor shapes: {x}vs {y}"
)


@pytest.mark.parametrize("cut", ["", "\n"])
def test_sizes_that_differ_at_one_number_are_a_mismatch(tmp_path: Path, cut: str) -> None:
    errors = [
        "RuntimeError: " + FINGERPRINT.format(a=0, b=1, x=256, y=128, cut=cut),
        "RuntimeError: " + FINGERPRINT.format(a=1, b=0, x=128, y=256, cut=cut),
    ]
    text = progress((0, 1)) + "".join(traceback(rank, error) for rank, error in enumerate(errors))
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.mismatch", (0, 1), "proven")]
    assert "256" in result.findings[0].title
    assert "128" in result.findings[0].title


def test_of_several_ranks_the_one_in_another_call_is_named(tmp_path: Path) -> None:
    pairs = [(0, 3), (1, 3), (2, 3), (3, 0)]
    text = "".join(
        traceback(a, "RuntimeError: " + FINGERPRINT.format(
            a=a, b=b, x=8 if a == 3 else 4, y=8 if b == 3 else 4, cut=""))
        for a, b in pairs
    )  # fmt: skip
    assert alerts(verdict(tmp_path, text)) == [("hang.mismatch", (3,), "proven")]


def test_a_rank_without_a_log_is_a_candidate_and_not_proven(tmp_path: Path) -> None:
    files = {
        f"rank{rank}.log": f"world_size: 4\nstep 9\n{watchdog(rank, 10)}" for rank in (0, 2, 3)
    }
    result = verdict(tmp_path, files)
    assert ("hang.missing_rank", (1,), "likely") in alerts(result)
    assert (
        "there is no log of it" in result.findings[0].title
        or "no record" in result.findings[0].title
    )


def test_one_log_alone_gives_no_verdict_over_others(tmp_path: Path) -> None:
    result = verdict(tmp_path, {"rank0.log": "world_size: 4\nstep 9\n" + watchdog(0, 10)})
    assert [(id_, sure) for id_, _, sure in alerts(result) if id_.startswith("hang")] == [
        ("hang.missing_rank", "cannot_tell")
    ]


def test_a_rank_far_behind_is_named_by_its_number(tmp_path: Path) -> None:
    text = "".join(watchdog(rank, 96_117) for rank in range(7)) + watchdog(7, 64_088)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.missing_rank", (7,), "likely")]
    assert "64088" in result.findings[0].title


def test_where_all_have_come_nobody_is_accused(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(watchdog(rank, 77) for rank in range(4))
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.missing_rank", (), "cannot_tell")]


def test_a_rank_that_was_in_the_call_and_did_not_complain_is_not_missing(tmp_path: Path) -> None:
    text = "".join(watchdog(rank, 77) for rank in (0, 1, 2)) + dump_signal(3, 77, 76)
    assert alerts(verdict(tmp_path, text)) == [("hang.missing_rank", (), "cannot_tell")]


def test_ranks_of_a_subgroup_are_global_ones(tmp_path: Path) -> None:
    """Places in the group are not ranks; its members follow from the places that are seen."""
    group = "[PG ID 2 PG GUID 9(tp) Rank {}]"
    text = progress(range(8, 12))
    for place, rank in ((0, 8), (1, 9), (3, 11)):
        text += watchdog(rank, 55, group=group.format(place))
    result = verdict(tmp_path, text)
    assert ("hang.missing_rank", (10,), "likely") in alerts(result)
    assert not any(rank in ranks for _, ranks, _ in alerts(result)[:1] for rank in (0, 1, 2, 3))


def test_the_desync_report_is_believed(tmp_path: Path) -> None:
    text = watchdog(0, 123) + c10(
        0,
        "\t - To our best knowledge, ranks [3, 5] are the lagging ranks that caused this timeout."
        " They never joined any collectives",
    )
    result = verdict(tmp_path, progress(range(6)) + text)
    assert alerts(result) == [
        ("hang.missing_rank", (3,), "proven"),
        ("hang.missing_rank", (5,), "proven"),
    ]


def test_old_lines_without_a_time_or_a_tag_name_the_rank_all_the_same(tmp_path: Path) -> None:
    line = (
        "[E ProcessGroupNCCL.cpp:475] [Rank {0}] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800500"
        " milliseconds before timing out.\n"
    )
    text = "world size: 4\n" + "".join(line.format(rank) for rank in (0, 1, 3))
    assert ("hang.missing_rank", (2,), "likely") in alerts(verdict(tmp_path, text))


# Crashes


def test_running_out_of_gpu_memory_explains_lost_connections(tmp_path: Path) -> None:
    """Rank 0 complains first, and is a victim."""
    text = progress(range(4))
    text += traceback(0, "torch.distributed.DistBackendError: NCCL error: remote process exited or"
                      " there was a network error")  # fmt: skip
    text += "[rank0]: socketProgress: Connection closed by remote peer node1<32926>\n"
    text += traceback(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 MiB.")
    text += elastic({0: -6, 1: -6, 2: -6, 3: 1}, first=0)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.oom", (3,), "proven")]
    assert result.symptom == "oom"
    assert "/job/train.py:41 step" in result.findings[0].title


def test_a_killed_worker_and_not_those_that_lost_it(tmp_path: Path) -> None:
    lost = "RuntimeError: [../pair.cc:553] Connection closed by peer [10.0.0.1]:2987"
    text = progress(range(4)) + traceback(0, lost) + traceback(2, lost)
    text += elastic({1: -9, 0: -15, 2: -15, 3: -15}, first=1)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.killed", (1,), "proven")]
    assert result.symptom == "crash"  # nothing speaks of memory
    assert "signal 9 (SIGKILL, says the launcher); ranks 0, 2-3 ended" in result.findings[0].title
    assert "step 4 ok" in result.findings[0].title


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "gpu_ecc"),
        ("CUDA error: an illegal memory access was encountered", "gpu_illegal"),
        ("CUDA error: device-side assert triggered", "gpu_assert"),
    ],
)
def test_a_gpu_fault_is_the_cause_and_timeouts_are_not(
    tmp_path: Path, error: str, cause: str
) -> None:
    text = progress(range(16)) + c10(
        12, "[PG 0 (default_pg) Rank 12] Process group watchdog thread terminated with exception:"
        f" {error}",
        time="12:00:30.000000001",
    )  # fmt: skip
    text += "".join(watchdog(rank, 90) for rank in range(16) if rank != 12)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.error", (12,), "proven")]
    assert result.findings[0].evidence["class"] == cause


def test_the_oom_killer_is_matched_by_pid(tmp_path: Path) -> None:
    kernel = (
        "Mar  4 12:09:59 node0 kernel: [9123.4] Out of memory: Killed process 4002 (python)"
        " total-vm:90000000kB, anon-rss:80000000kB\n"
    )
    text = progress(range(4)) + elastic({2: -9, 0: -15, 1: -15, 3: -15}, first=2)
    result = verdict(tmp_path, {"job.log": text, "dmesg.txt": kernel})
    assert alerts(result) == [("crash.killed", (2,), "proven")]
    assert result.symptom == "oom"
    assert result.findings[0].evidence["source"] == "dmesg.txt:1"


def test_slurm_says_which_task_ran_out_of_memory(tmp_path: Path) -> None:
    text = progress(range(4)) + (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have"
        " been OOM Killed.\n"
        "srun: error: node1: task 3: Out Of Memory\n"
        "srun: Terminating StepId=77.0\n"
        "slurmstepd: error: *** STEP 77.0 ON node0 CANCELLED AT 2026-03-04T12:10:00 ***\n"
    )
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.killed", (3,), "likely")]
    assert result.symptom == "oom"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("slurmstepd: error: *** JOB 77 ON node0 CANCELLED AT 2026-03-04T12:10:00 DUE TO TIME"
         " LIMIT ***", "time limit"),
        ("slurmstepd: error: *** STEP 77.0 ON node0 CANCELLED AT 2026-03-04T12:10:00 DUE TO"
         " PREEMPTION ***", "preempted"),
        ("Warning  Evicted  2m  kubelet  The node was low on resource: memory.", "evicted"),
        ("slurmstepd: error: *** JOB 77 ON node0 CANCELLED AT 2026-03-04T12:10:00 DUE TO NODE"
         " FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "node failure"),
        ("slurmstepd: error: *** JOB 77 ON node0 CANCELLED AT 2026-03-04T12:10:00 ***",
         "cancelled"),
    ],
)  # fmt: skip
def test_the_scheduler_ended_the_job_and_no_rank_did(
    tmp_path: Path, line: str, reason: str
) -> None:
    text = progress(range(4)) + line + "\n" + elastic(dict.fromkeys(range(4), -15), first=0)
    result = verdict(tmp_path, text)
    assert [(id_, sure) for id_, _, sure in alerts(result)] == [("crash.killed", "proven")]
    assert result.findings[0].evidence["reason"] == reason


def test_a_time_limit_after_an_error_is_not_the_cause(tmp_path: Path) -> None:
    text = progress(range(4)) + traceback(2, "ValueError: bad sample")
    text += "slurmstepd: error: *** JOB 77 ON n CANCELLED AT 2026-03-04 DUE TO TIME LIMIT ***\n"
    assert [a[:2] for a in alerts(verdict(tmp_path, text))] == [("crash.error", (2,))]


def test_a_pod_that_kubernetes_killed_for_memory(tmp_path: Path) -> None:
    text = progress(range(2)) + "    Last State: Terminated\n      Reason:    OOMKilled\n"
    result = verdict(tmp_path, text + elastic({1: -9, 0: -15}, first=1))
    assert alerts(result) == [("crash.killed", (1,), "likely")]
    assert result.symptom == "oom"


def test_shared_memory_that_is_full(tmp_path: Path) -> None:
    text = progress(range(2)) + traceback(
        1, "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible"
        " that dataloader's workers are out of shared memory. unexpected bus error encountered in"
        " worker"
    )  # fmt: skip
    result = verdict(tmp_path, text)
    assert alerts(result)[0][:2] == ("crash.error", (1,))
    assert result.findings[0].evidence["class"] == "host_shm"


def test_xid_of_the_driver_beside_a_crash(tmp_path: Path) -> None:
    kernel = "[Wed Mar  4 12:09:58 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=4001, GPU has fallen\n"
    text = progress(range(2)) + elastic({1: -6, 0: -15}, first=1)
    result = verdict(tmp_path, {"job.log": text, "dmesg": kernel})
    assert any("Xid 79" in finding.title for finding in result.findings)
    assert 0 not in result.findings[0].ranks


def test_victims_alone_point_at_the_rank_that_left_no_error(tmp_path: Path) -> None:
    lost = "RuntimeError: [../pair.cc:553] Connection closed by peer [10.0.0.1]:2987"
    text = progress(range(4)) + "".join(traceback(rank, lost) for rank in (0, 2, 3))
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.vanished", (1,), "likely")]


def test_an_error_in_a_loaders_worker_is_told_by_its_innermost_frame(tmp_path: Path) -> None:
    text = progress((0, 1)) + (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/main.py", line 9, in <module>\n'
        "[rank1]:     for batch in loader:\n"
        "[rank1]: ValueError: Caught ValueError in DataLoader worker process 3.\n"
        "[rank1]: Original Traceback (most recent call last):\n"
        '[rank1]:   File "/usr/site-packages/torch/utils/data/fetch.py", line 5, in get\n'
        "[rank1]:     data = self.dataset[i]\n"
        '[rank1]:   File "/job/data.py", line 77, in __getitem__\n'
        "[rank1]:     raise ValueError\n"
        "[rank1]: ValueError: image is cut\n"
    )
    result = verdict(tmp_path, text)
    assert alerts(result)[0][:2] == ("crash.error", (1,))
    assert "image is cut at /job/data.py:77 __getitem__" in result.findings[0].title


def test_the_first_of_chained_errors_counts(tmp_path: Path) -> None:
    text = progress((0,)) + traceback(0, "KeyError: 'labels'", "data.py:7 collate")
    text += (
        "[rank0]: \n[rank0]: During handling of the above exception, another exception occurred:\n"
    )
    text += traceback(0, "RuntimeError: cannot collate", "loop.py:5 run")
    assert (
        "KeyError: 'labels' at /job/data.py:7 collate" in verdict(tmp_path, text).findings[0].title
    )


def test_error_files_of_torchelastic(tmp_path: Path) -> None:
    error = (
        '{"message": {"message": "ValueError: bad sample 17", "extraInfo": {"py_callstack":'
        ' "Traceback (most recent call last):\\n  File \\"/job/data.py\\", line 12, in load\\n'
        '    raise ValueError\\nValueError: bad sample 17\\n", "timestamp": "1772626200"}}}'
    )
    files = {
        "attempt_0/1/error.json": error,
        "attempt_0/0/stderr.log": traceback(0, "RuntimeError: Connection reset by peer"),
    }
    result = verdict(tmp_path, files)
    assert alerts(result)[0][:2] == ("crash.error", (1,))
    assert "bad sample 17" in result.findings[0].title
    assert "data.py:12" in result.findings[0].title


def test_hosts_that_only_a_launcher_names_do_not_part_the_clocks(tmp_path: Path) -> None:
    text = progress(range(4)) + elastic({1: -9, 0: -15}, first=1)
    assert {id_ for id_, _, _ in alerts(verdict(tmp_path, text))} == {"crash.killed"}


def test_exit_codes_alone_accuse_nobody(tmp_path: Path) -> None:
    """The launcher's root cause is only the one that it saw first."""
    result = verdict(tmp_path, progress(range(3)) + elastic({0: 1, 1: 1, 2: -15}, first=0))
    assert alerts(result) == [("crash.error", (0, 1), "cannot_tell")]


def test_an_exit_code_may_tell_of_a_signal(tmp_path: Path) -> None:
    text = progress(range(2)) + elastic({1: 137, 0: -15}, first=1)
    assert alerts(verdict(tmp_path, text)) == [("crash.killed", (1,), "proven")]


def test_rank_0_is_silent_because_it_waits(tmp_path: Path) -> None:
    text = progress(range(4)) + traceback(2, "ValueError: bad sample 17", "data.py:12 load")
    text += elastic({2: 1, 0: -15, 1: -15, 3: -15}, first=2)
    result = verdict(tmp_path, text)
    listed = first_errors(result)
    assert listed.title.startswith("first errors: rank 0: none")
    assert "rank 2: ValueError: bad sample 17 at /job/data.py:12 load" in listed.title
