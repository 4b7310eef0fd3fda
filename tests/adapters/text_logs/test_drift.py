"""Who writes late: ranks are compared by the messages that all of them write."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.text_logs.logs import alerts, verdict
from tracekit.adapters.text_logs._drift import Drift

SECOND = 1_000_000_000


def log(rank: int, lag_s: float = 0.0, since: int = 0, steps: int = 40) -> str:
    """Steps of 2 s; from one of them on, late by so much."""
    lines = []
    for step in range(steps):
        at = 2.0 * step + 0.01 * rank + (lag_s if step >= since else 0.0)
        text = "saving a checkpoint" if step == 20 else f"step {step} loss {2.0 / (step + 1):.3f}"
        lines.append(f"RANK {rank} 10:{int(at) // 60:02d}:{at % 60:06.3f} {text}\n")
    return "".join(lines)


def test_a_rank_that_falls_behind_is_named_with_the_message(tmp_path: Path) -> None:
    files = {f"rank{rank}.log": log(rank, 40.0 if rank == 5 else 0.0, 20) for rank in range(16)}
    result = verdict(tmp_path, dict(files))
    assert alerts(result) == [("straggler.rank", (5,), "likely")]
    title = result.findings[0].title
    assert "40.0 s behind" in title
    assert "saving a checkpoint" in title
    assert "rank5.log:21" in title
    assert result.findings[0].evidence["error_ms"] < 100


def test_a_rank_that_was_late_from_the_first_line_may_have_another_clock(tmp_path: Path) -> None:
    files = {f"rank{rank}.log": log(rank, 11.5 if rank == 1 else 0.0) for rank in range(4)}
    result = verdict(tmp_path, dict(files))
    assert alerts(result) == []
    assert "clock differs" in result.findings[0].title


def test_ranks_that_keep_up_are_not_named(tmp_path: Path) -> None:
    assert verdict(tmp_path, {f"rank{rank}.log": log(rank) for rank in range(8)}).findings == ()


def test_lines_without_a_time_tell_no_drift(tmp_path: Path) -> None:
    text = "".join(f"[rank{rank}]: step {step}\n" for step in range(50) for rank in range(4))
    assert verdict(tmp_path, text).findings == ()


def test_messages_are_matched_by_their_step_and_not_by_their_place() -> None:
    """Rank 1 writes every second step only."""
    drift = Drift()
    for step in range(60):
        drift.take(0, f"step {step} loss 1.{step}", step * SECOND, "a:1")
        if step % 2 == 0:
            drift.take(1, f"step {step} loss 3.{step}", step * SECOND + SECOND // 10, "b:1")
    lag = drift.lags()[1]
    assert lag.messages == 30
    assert abs(lag.ms - 100) < 1
    assert lag.at is None


def test_of_many_messages_every_rank_keeps_the_same_sample() -> None:
    drift = Drift()
    for step in range(150_000):
        for rank in (0, 1):
            drift.take(rank, f"step {step}", step * SECOND + rank * SECOND // 2, "a:1")
    assert sum(len(times) for times in drift._times.values()) <= 200_001
    lag = drift.lags()[1]
    assert lag.messages > 10_000
    assert abs(lag.ms - 500) < 1
