"""One agent a host; what fails with one journal does not stop it from serving the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracekit
from tracekit.agent import Agent, AgentOptions
from tracekit.agent import _agent as module
from tracekit.dataset import Converted, finalize, open_run
from tracekit.journal.reader import JournalReader
from tracekit.model import host8
from tracekit.session._environment import machine


def two_ranks(tmp_path: Path) -> Path:
    """A run of two ranks that stopped, with their journals still there."""
    session = tracekit.start(run="two", dir=str(tmp_path), rank=0, world_size=2, agent=False)
    assert session is not None
    for rank in range(2):
        with tracekit.as_rank(rank), tracekit.step(0), tracekit.span("work"):
            pass
    tracekit.stop()
    return session.run_dir


def agent(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    here = machine()
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(module, "_TICK_S", 0.01)
    return Agent(AgentOptions(run_dir, host8(here.host, here.boot_id), ranks=2))


def test_it_ends_when_all_ranks_are_gone_and_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = two_ranks(tmp_path)
    assert agent(run_dir, monkeypatch).run() == 0
    assert list((run_dir / "attempt-000" / "journal").iterdir()) == []
    with open_run(run_dir) as run:
        assert run.ranks == (0, 1)


def test_a_journal_that_cannot_be_converted_is_left_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = two_ranks(tmp_path)

    def broken(reader: JournalReader, run_dir: Path) -> Converted:
        if reader.rank == 0:
            raise OSError(28, "No space left on device")
        return finalize(reader, run_dir)

    monkeypatch.setattr(module, "finalize", broken)
    monkeypatch.setattr(module, "_MOST_FAILURES", 1)
    assert agent(run_dir, monkeypatch).run() == 0
    log = next((run_dir / "attempt-000").glob("agent-*.log")).read_text()
    assert log.count("Traceback") == 1
    assert "given up" in log
    with open_run(run_dir) as run:
        assert run.ranks == (0, 1)
        assert run.table("spans", ["name"])["name"].to_pylist().count("work") == 2


def test_it_does_not_wait_for_ranks_that_died_without_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = two_ranks(tmp_path)
    for path in (run_dir / "attempt-000").glob("*/rank-*"):
        if path.suffix == ".tkj":
            path.unlink()
        else:
            path.write_text(path.read_text().replace('"pid_start": ', '"pid_start": 1'))
    assert agent(run_dir, monkeypatch).run() == 0
