"""``compact``, ``collect`` and ``agent`` put a run in order without changing what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.cli.conftest import Call, make_run


def spans_of(call: Call, run: Path) -> Any:
    done = call("analyze", run, "--format", "json")
    assert (done.code, done.err) == (0, "")
    verdict = json.loads(done.out)
    del verdict["coverage"]["files"]
    return verdict


def journals(run: Path) -> list[Path]:
    return list(run.rglob("*.tkj"))


def test_compacting_leaves_few_files_and_the_same_verdict(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    before = spans_of(call, run)
    done = call("compact", run)
    assert (done.code, done.err) == (0, "")
    assert "rows in" in done.out
    assert journals(run) == []
    assert len(list((run / "spans").rglob("*.parquet"))) == 1
    assert spans_of(call, run) == before
    assert call("compact", run).code == 0


def test_the_agent_converts_what_is_there_and_ends(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    before = spans_of(call, run)
    assert call("agent", run).code == 0
    assert journals(run) == []
    assert spans_of(call, run) == before


def in_scratch(run: Path, scratch: Path, **changed: str) -> None:
    """Put the journals of a run where the session does when the run is on a network."""
    shutil.move(run / "attempt-000" / "journal", scratch)
    for path in (run / "attempt-000" / "ranks").glob("rank-*.json"):
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "journal": str(scratch), **changed}))


def test_journals_in_scratch_are_collected(call: Call, tmp_path: Path) -> None:
    run, scratch = make_run(tmp_path), tmp_path / "scratch"
    in_scratch(run, scratch)
    done = call("collect", run)
    assert (done.code, done.err) == (0, "")
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["rank 0", "rank 1"]
    assert list(scratch.iterdir()) == []
    shutil.rmtree(scratch)
    assert spans_of(call, run)["run"]["ranks"] == [0, 1]
    again = call("collect", run)
    assert (again.code, again.out) == (0, "nothing to collect on this host\n")


def test_journals_of_other_hosts_are_named(call: Call, tmp_path: Path) -> None:
    run, scratch = make_run(tmp_path), tmp_path / "scratch"
    in_scratch(run, scratch, host="node-7", boot_id="another")
    shutil.rmtree(scratch)
    done = call("collect", run)
    assert done.code == 0
    assert done.out.splitlines() == [
        f"rank {rank}: its journal is on host node-7: {scratch}, run tracekit collect {run} there"
        for rank in (0, 1)
    ]


def test_journals_that_are_gone_are_told(call: Call, tmp_path: Path) -> None:
    run, scratch = make_run(tmp_path), tmp_path / "scratch"
    in_scratch(run, scratch)
    shutil.rmtree(scratch)
    done = call("collect", run)
    assert done.code == 0
    assert f"rank 0: its journal is gone from this host: {scratch}" in done.out
