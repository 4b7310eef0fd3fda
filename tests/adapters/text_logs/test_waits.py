"""Whom ranks waited for, where their lines differ, name no group, or tell of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.text_logs.logs import (
    alerts,
    c10,
    elastic,
    progress,
    traceback,
    verdict,
    watchdog,
)


def nameless(rank: int, place: int, seq: int, numel: int = 4096) -> str:
    """A watchdog's line of a release that does not name the group."""
    return (
        f"[rank{rank}]:[E304 12:10:00.000000001 ProcessGroupNCCL.cpp:523] [Rank {place}] Watchdog"
        f" caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE,"
        f" NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600012 milliseconds"
        " before timing out.\n"
    )


def test_places_in_groups_without_a_name_accuse_nobody_of_other_groups(tmp_path: Path) -> None:
    """Eight groups of two: their numbers and places must not be taken for one group's."""
    waits = [(0, 0, 55), (1, 1, 55), (2, 0, 70), (3, 1, 70), (9, 1, 55)]
    text = progress(range(16)) + "".join(nameless(*wait) for wait in waits)
    assert alerts(verdict(tmp_path, text)) == [("hang.missing_rank", (), "cannot_tell")]


@pytest.mark.parametrize("waiting", [(0,), (0, 1)])
def test_few_ranks_that_name_no_group_may_be_a_group_of_their_own(
    tmp_path: Path, waiting: tuple[int, ...]
) -> None:
    text = progress(range(16)) + "".join(nameless(rank, rank, 55) for rank in waiting)
    assert alerts(verdict(tmp_path, text)) == [("hang.missing_rank", (), "cannot_tell")]


def test_the_one_of_many_that_waits_for_another_size_is_the_odd_one(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(
        watchdog(rank, 500, op="_ALLGATHER_BASE", numel=1024 if rank == 2 else 4096)
        for rank in range(4)
    )
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.mismatch", (2,), "proven")]
    assert "1024" in result.findings[0].title
    assert "4096" in result.findings[0].title


def test_the_one_of_many_that_waits_in_another_operation_is_the_odd_one(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(
        watchdog(rank, 500, op="BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(4)
    )
    assert alerts(verdict(tmp_path, text)) == [("hang.mismatch", (1,), "proven")]


def test_parts_that_may_differ_in_size_are_no_mismatch(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(
        watchdog(rank, 500, op="ALLTOALL_BASE", numel=1000 + rank) for rank in range(4)
    )
    assert alerts(verdict(tmp_path, text)) == [("hang.missing_rank", (), "cannot_tell")]


def test_a_rank_that_ended_calls_which_most_have_not_made_others(tmp_path: Path) -> None:
    """A layer's experts gathered on some ranks only: numbers agree no more from there on."""
    text = progress(range(4)) + "".join(
        watchdog(rank, 503 if rank == 2 else 500, op="_ALLGATHER_BASE") for rank in range(4)
    )
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.mismatch", (2,), "likely")]
    assert "500" in result.findings[0].title


def test_a_rank_one_call_ahead_may_only_have_been_the_first_to_end_it(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(
        watchdog(rank, 501 if rank == 2 else 500) for rank in range(4)
    )
    assert alerts(verdict(tmp_path, text)) == [("hang.missing_rank", (), "cannot_tell")]


def test_who_cannot_reach_the_store_is_a_victim(tmp_path: Path) -> None:
    error = (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while"
        " trying to connect to (10.3.0.1, 29511)."
    )
    result = verdict(tmp_path, "".join(traceback(rank, error) for rank in (1, 2, 3)))
    hangs = [one for one in alerts(result) if one[0] != "coverage.partial"]
    assert hangs == [("hang.missing_rank", (0,), "likely")]
    assert (result.symptom, result.phase) == ("hang", "startup")


def test_a_watchdog_that_is_stuck_after_a_timeout_tells_nothing_new(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(
        watchdog(rank, 77)
        + c10(rank, f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] ProcessGroupNCCL's watchdog got"
              " stuck for 480 seconds without making progress in monitoring enqueued collectives.")
        for rank in range(4)
    )  # fmt: skip
    assert alerts(verdict(tmp_path, text)) == [("hang.missing_rank", (), "cannot_tell")]


@pytest.mark.parametrize(
    "line",
    ["ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring"
     " enqueued collectives.",
     "Heartbeat monitor timed out! Process will be terminated after dumping debug info."
     " workMetaList_.size()=1"],
)  # fmt: skip
def test_monitors_that_gave_up_alone_accuse_nobody(tmp_path: Path, line: str) -> None:
    text = progress(range(4)) + "".join(
        c10(rank, f"[PG 0 (default_pg) Rank {rank}] {line}") for rank in (0, 1)
    )
    assert all(ranks == () and sure == "cannot_tell" for _, ranks, sure in
               alerts(verdict(tmp_path, text)))  # fmt: skip


def test_an_allocation_of_nonsense_after_a_timeout_is_not_the_cause(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(watchdog(rank, 77) for rank in (0, 1, 3))
    text += "[rank3]: include/alloc.h:10 Tried to allocate more than 1EB\n"
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.missing_rank", (2,), "likely")]
    assert result.symptom == "hang"


def test_the_abort_of_a_watchdog_is_no_crash(tmp_path: Path) -> None:
    """The launcher sees signal 6 first and calls it the root."""
    text = progress(range(4)) + "".join(watchdog(rank, 77) for rank in (0, 1, 3))
    text += elastic({0: -6, 1: -6, 3: -6, 2: -15}, first=0)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("hang.missing_rank", (2,), "likely")]


@pytest.mark.parametrize("signal", [7, 11])
def test_a_rank_that_died_of_a_signal_of_its_own_is_named(tmp_path: Path, signal: int) -> None:
    text = progress(range(4)) + elastic({2: -signal, 0: -15, 1: -15, 3: -15}, first=2)
    result = verdict(tmp_path, text)
    assert [one[:2] for one in alerts(result)] == [("crash.killed", (2,))]
    assert f"signal {signal}" in result.findings[0].title


def test_a_worker_that_ray_lost_to_the_oom_killer_explains_the_timeouts(tmp_path: Path) -> None:
    text = progress(range(4)) + (
        "(raylet, ip=10.3.0.3) A worker died or was killed while executing a task. Worker"
        " unexpectedly exits with a connection error code 2. The process is killed by SIGKILL by"
        " OOM killer due to high memory usage.\n"
    )
    text += "".join(watchdog(rank, 876, op="BROADCAST") for rank in (0, 1, 3))
    result = verdict(tmp_path, text)
    assert result.symptom == "oom"
    assert alerts(result)[0][0] == "crash.killed"
    assert not any(rank in ranks for _, ranks, _ in alerts(result) for rank in (0, 1, 3))
