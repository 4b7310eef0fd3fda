"""Profiler windows of a running job: each of them is in the run once, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

import tracekit
from tests.adapters.xplane import runs, spaces
from tracekit.adapters.xplane import _windows, adopt
from tracekit.agent import Agent, AgentOptions
from tracekit.agent import _agent as agent_module
from tracekit.dataset import compact, open_run
from tracekit.model import host8
from tracekit.session._environment import machine

MS = spaces.MS


def job(tmp_path: Path, ranks: int = 2) -> tuple[Path, list[str]]:
    """A run of two ranks that stopped, and the stems of their journals."""
    session = tracekit.start(run="job", dir=str(tmp_path), rank=0, world_size=ranks, agent=False)
    assert session is not None
    for rank in range(ranks):
        with tracekit.as_rank(rank), tracekit.step(0):
            pass
    tracekit.stop()
    heads = sorted((session.run_dir / "attempt-000" / "journal").glob("*.head.tkj"))
    return session.run_dir, [head.name.removesuffix(".head.tkj") for head in heads]


def window(run: Path, stem: str, first: int = 30, data: bytes | None = None) -> Path:
    """A finished window of two steps."""
    rank = int(stem[5:10])
    folder = run / "attempt-000" / "xplane" / stem / f"window-{first}"
    inner = folder / "plugins" / "profile" / "now"
    inner.mkdir(parents=True)
    made = spaces.worker(rank, first=first) if data is None else data
    (inner / "node-a.xplane.pb").write_bytes(made)
    start = spaces.START_NS
    told = {
        "rank": rank,
        "first_step": first,
        "last_step": first + 1,
        "start_ns": start,
        "end_ns": start + 20 * MS,
        "steps": [[first, start, start + 10 * MS], [first + 1, start + 10 * MS, start + 20 * MS]],
    }
    (folder / "window.json").write_text(json.dumps(told))
    return folder


def collectives(run: Path) -> list[tuple[int, int, str]]:
    rows = runs.spans(run)
    rows = rows.filter(pc.equal(rows["kind"], "comm"))
    return sorted((row["rank"], row["step"], row["name"]) for row in rows.to_pylist())


WANTED = [
    (rank, step, name) for rank in (0, 1) for step in (30, 31) for name in ("all_reduce", "wait")
]


def test_a_window_becomes_spans_of_its_steps(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    folders = [window(run, stem) for stem in stems]
    done = adopt(run, 0)
    assert (done.windows, done.skipped) == (folders, [])
    assert collectives(run) == WANTED
    rows = runs.spans(run)
    rows = rows.filter(pc.greater_equal(rows["step"], 30)).to_pylist()
    assert "step" not in {row["kind"] for row in rows}, "the job itself records its steps"
    assert {row["group_size"] for row in rows if row["kind"] == "comm"} == {2}
    assert all(("source", '"xplane"') in row["attributes"] for row in rows)
    seqs = [
        {row["collective_seq"] for row in rows if row["rank"] == rank and row["kind"] == "comm"}
        for rank in (0, 1)
    ]
    assert seqs[0] == seqs[1]
    assert len(seqs[0]) == 2


def test_a_window_is_taken_once(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    for stem in stems:
        window(run, stem)
    assert len(adopt(run, 0).windows) == 2
    assert adopt(run, 0).windows == []
    for mark in run.rglob("adopted"):
        mark.unlink()
    assert adopt(run, 0).windows == []
    assert collectives(run) == WANTED


def test_a_window_that_a_compaction_took_over_is_not_taken_again(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    for stem in stems:
        window(run, stem)
    adopt(run, 0)
    compact(run)
    for mark in run.rglob("adopted"):
        mark.unlink()
    assert adopt(run, 0).windows == []
    assert collectives(run) == WANTED
    compact(run)
    assert collectives(run) == WANTED


@pytest.mark.parametrize("published", [False, True], ids=["unpublished", "published"])
@pytest.mark.parametrize("compacted", [False, True], ids=["apart", "compacted"])
def test_what_a_killed_writer_left_is_removed(
    published: bool, compacted: bool, tmp_path: Path
) -> None:
    run, stems = job(tmp_path)
    window(run, stems[0])
    adopt(run, 0)
    [part] = run.glob("spans/*/*/part-xplane-*.parquet")
    left = part.with_name(f".{part.name}.1-00000000.tmp")
    left.write_bytes(part.read_bytes())
    if not published:
        part.unlink()
    if compacted:
        compact(run)
    for mark in run.rglob("adopted"):
        mark.unlink()
    adopt(run, 0)
    assert not left.exists()
    assert collectives(run) == [one for one in WANTED if one[0] == 0]


def test_a_part_written_again_after_a_compaction_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process looked before the compaction, and wrote after it."""
    run, stems = job(tmp_path)
    for stem in stems:
        window(run, stem)
    adopt(run, 0)
    compact(run)
    for mark in run.rglob("adopted"):
        mark.unlink()
    monkeypatch.setattr(_windows, "_compacted", lambda run_dir, part: False)
    assert len(adopt(run, 0).windows) == 2
    assert collectives(run) == WANTED
    compact(run)
    assert collectives(run) == WANTED


KILLED = """
import sys
from pathlib import Path
from tracekit.adapters.xplane import adopt
print("go", flush=True)
adopt(Path(sys.argv[1]), 0)
"""


@pytest.mark.slow
def test_killed_at_any_moment_each_window_is_there_once(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    firsts = range(30, 60, 2)
    for first in firsts:
        for stem in stems:
            window(run, stem, first)
    for attempt in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(run)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(0.004 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if attempt == 6:
            compact(run)
    adopt(run, 0)
    found = collectives(run)
    assert found == sorted(set(found))
    assert {step for _, step, _ in found} == set(range(30, 60))
    assert list(run.rglob("*.tmp")) == []


def test_several_at_once_take_each_window_once(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    for first in range(30, 50, 2):
        for stem in stems:
            window(run, stem, first)
    threads = [threading.Thread(target=adopt, args=(run, 0)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    adopt(run, 0)
    found = collectives(run)
    assert found == sorted(set(found))
    assert len(found) == 2 * 20 * 2


def test_a_window_that_is_not_finished_is_let_alone(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    (window(run, stems[0]) / "window.json").unlink()
    done = adopt(run, 0)
    assert (done.windows, done.skipped) == ([], [])


def test_only_windows_of_the_agents_own_host(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    window(run, stems[0])
    assert adopt(run, 0, "ffffffff").windows == []
    assert len(adopt(run, 0, stems[0].split(".")[1].split("-")[0]).windows) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "no object"),
        ("{}", "first_step"),
        ('{"rank": 5, "first_step": 1, "start_ns": 0, "end_ns": 1}', "of rank 5"),
        ('{"first_step": 1, "start_ns": 0, "end_ns": 1}', "do not fit"),
        ('{"first_step": 1, "start_ns": 0, "end_ns": 1, "steps": [[1]]}', "unpack"),
        ('{"first_step": 1, "start_ns": 0, "end_ns": 1e999}', "infinity"),
        ('{"first_step": 1, "start_ns": 0, "end_ns": 1, "steps": [[1, 0, 1%s]]}' % ("0" * 30), ""),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_window_that_says_nonsense_is_named(tmp_path: Path, text: str, reason: str) -> None:
    run, stems = job(tmp_path)
    folder = window(run, stems[0])
    (folder / "window.json").write_text(text)
    good = window(run, stems[1])
    done = adopt(run, 0)
    assert done.windows == [good]
    ((named, why),) = done.skipped
    assert named == folder
    assert reason in why


def test_a_window_with_a_damaged_profile_is_named(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    folder = window(run, stems[0], data=spaces.worker(0)[:100])
    empty = window(run, stems[1], data=b"")
    done = adopt(run, 0)
    assert [path for path, _ in done.skipped] == [folder, empty]
    assert "the file is empty" in done.skipped[1][1]


def test_old_profiles_are_removed_once_their_spans_are_in_the_run(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    for first in range(30, 50, 2):
        window(run, stems[0], first)
    broken = window(run, stems[0], 28, data=b"")
    adopt(run, 0)
    left = {path.parents[3].name for path in run.rglob("*.xplane.pb")}
    assert left == {"window-42", "window-44", "window-46", "window-48", broken.name}


def test_the_agent_takes_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, stems = job(tmp_path)
    for stem in stems:
        window(run, stem)
    window(run, stems[0], 40, data=b"")
    here = machine()
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(agent_module, "_TICK_S", 0.01)
    assert Agent(AgentOptions(run, host8(here.host, here.boot_id), ranks=2)).run() == 0
    assert len(list((run / "spans").rglob("part-xplane-*.parquet"))) == 2
    log = next((run / "attempt-000").glob("agent-*.log")).read_text()
    assert "window-40: the file is empty; skipped" in log
    with open_run(run) as opened:
        assert opened.ranks == (0, 1)
        assert opened.coverage.duplicate_ranks == ()


def test_a_run_that_cannot_be_written_is_looked_at_without_its_windows(tmp_path: Path) -> None:
    run, stems = job(tmp_path)
    window(run, stems[0])
    if os.geteuid() == 0:
        (run / "spans").write_text("in the way")
    else:
        run.chmod(0o500)
    ((_, reason),) = adopt(run, 0).skipped
    assert reason
