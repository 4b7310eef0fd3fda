"""Whoever is killed at whatever instruction: every record that counts is there, and once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.dataset.ranks import journal_folder, journals, recording, spans
from tests.dataset.tables import span_ids
from tracekit import recorder
from tracekit.dataset import compact, finalize, open_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def killing(what: str, run_dir: Path, kills: int, seed: int = 0) -> list[int]:
    """Let a process fork and kill others; returns what it prints."""
    command = [sys.executable, "-m", "tests.dataset.killing", what]
    command += [str(run_dir), str(kills), str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    printed: list[int] = json.loads(done.stdout)
    return printed


def test_a_converter_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    for rank in (0, 1):
        process, run_dir = f"00c0ffee-{rank}", tmp_path / "run"
        with recording(run_dir, rank, world_size=2, process=process, segment_bytes=64 << 10):
            for _ in range(10):
                spans(400)
                recorder.event("loss", 0.5)
                recorder.fact("seed", rank)
    endings: list[int] = []
    for seed in range(8):
        run_dir = shutil.copytree(tmp_path / "run", tmp_path / str(seed))
        endings += killing("convert", run_dir, 8, seed)
        check_two_ranks(run_dir)
        for reader in journals(run_dir):
            finalize(reader, run_dir)
        compact(run_dir)
        check_two_ranks(run_dir)
        assert len(list((run_dir / "spans").iterdir())) == 1
        assert list(journal_folder(run_dir).iterdir()) == []
    assert set(endings) <= {0, signal.SIGKILL}
    assert endings.count(signal.SIGKILL) > 10


def check_two_ranks(run_dir: Path) -> None:
    with open_run(run_dir) as run:
        found = span_ids(run)
        assert len(found) == len(set(found)) == 8000
        assert len(run.table("events")) == 20
        assert run.table("facts")["name"].to_pylist().count("seed") == 20


def test_a_rank_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    torn = 0
    for seed in range(8):
        run_dir = tmp_path / str(seed)
        torn += check_killed_ranks(run_dir, killing("record", run_dir, 20, seed))
        if torn >= 3:
            break
    assert torn, "no kill met a record in the making"


def check_killed_ranks(run_dir: Path, vouched: list[int]) -> int:
    """All that was vouched for is there, and once; returns how many records were in the making."""
    with open_run(run_dir) as run:
        rows = run.table("spans", ["rank", "span_id", "is_open"]).to_pylist()
        events = Counter(row["rank"] for row in run.table("events", ["rank"]).to_pylist())
        torn = run.coverage.torn_slots
    ids = Counter((row["rank"], row["span_id"]) for row in rows)
    assert set(ids.values()) == {1}
    closed = Counter(row["rank"] for row in rows if not row["is_open"])
    for rank, count in enumerate(vouched):
        assert count <= closed[rank] <= count + 199
        assert count // 100 <= events[rank] <= count // 100 + 1
    return torn
