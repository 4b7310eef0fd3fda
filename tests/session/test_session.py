"""start() to stop() in real processes: who they are, where they write, what becomes of children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest

import tracekit
from tracekit import recorder
from tracekit.errors import UsageError
from tracekit.journal.reader import JournalReader, find_journals, open_journal


def journals(run_dir: Path) -> dict[int, JournalReader]:
    """The journals of a run's first attempt by rank."""
    readers = map(open_journal, find_journals(run_dir / "attempt-000" / "journal"))
    return {reader.rank: reader for reader in readers}


def names(reader: JournalReader) -> list[str]:
    """The names of the spans and events of a journal, in the order of their records."""
    return [
        reader.definitions.names[what >> 8 & 0x3FFF]
        for records in reader.records()
        for what, type_ in zip(records.rows[:, 2].tolist(), records.types.tolist(), strict=True)
        if type_ in (0, 1, 6)
    ]


def run_script(text: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", dedent(text), *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "TRACEKIT_PARENT"}
    return subprocess.run(
        command, env={**inherited, **environ}, capture_output=True, text=True, timeout=60
    )


def test_a_second_start_returns_the_session_that_runs(tmp_path: Path) -> None:
    first = tracekit.start(run="a", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    assert tracekit.start(run="b", dir=str(tmp_path)) is first
    tracekit.stop()


def test_nothing_is_written_where_tracekit_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_DISABLED", "1")
    assert tracekit.start(dir=str(tmp_path)) is None
    with tracekit.step(0), tracekit.span("work"):
        tracekit.event("loss", value=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_outside_the_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rank 4 is not one of 4 ranks"):
        tracekit.start(dir=str(tmp_path), rank=4, world_size=4)


def test_a_directory_that_cannot_be_made_is_said_once_and_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_script(
        """
        import sys, tracekit
        for _ in range(2):
            assert tracekit.start(dir=sys.argv[1] + "/file", rank=0, world_size=1) is None
        with tracekit.step(0):
            tracekit.event("loss", value=1.0)
        """,
        str(tmp_path),
    )
    assert (done.returncode, done.stderr.count("nothing is recorded")) == (0, 1)


def test_ranks_that_live_in_one_process_have_journals_of_their_own(tmp_path: Path) -> None:
    session = tracekit.start(run="four", dir=str(tmp_path), rank=0, world_size=4, agent=False)
    assert session is not None
    together = threading.Barrier(4)

    def work(rank: int) -> None:
        with tracekit.as_rank(rank), tracekit.step(0), tracekit.span(f"of {rank}"):
            together.wait()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracekit.stop()
    assert {rank: names(reader) for rank, reader in journals(session.run_dir).items()} == {
        rank: [f"of {rank}", "train_step"] for rank in range(4)
    }


def test_what_was_recorded_before_the_rank_was_known_is_not_lost(tmp_path: Path) -> None:
    session = tracekit.start(run="later", dir=str(tmp_path), agent=False)
    assert session is not None
    with tracekit.span("early"):
        recorder.bind_identity(rank=2, world_size=4, uid_store=lambda key, mine: "agreed")
    with tracekit.span("late"):
        pass
    tracekit.stop()
    (reader,) = journals(session.run_dir).values()
    assert (reader.rank, names(reader)) == (2, ["early", "late"])
    assert json.loads((session.run_dir / "run.json").read_text())["uid"] == "agreed"
    assert [path.name for path in tmp_path.iterdir()] == [session.run_dir.name]


def test_a_forked_child_is_silent_and_its_parent_unharmed(tmp_path: Path) -> None:
    done = run_script(
        """
        import os, sys, tracekit
        tracekit.start(run="fork", dir=sys.argv[1], rank=0, world_size=1, agent=False)
        with tracekit.span("around"):
            pid = os.fork()
            if pid == 0:
                with tracekit.span("child"):
                    tracekit.event("child too")
                sys.exit(0)
            os.waitpid(pid, 0)
        with tracekit.span("after"):
            pass
        """,
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    (reader,) = journals(tmp_path / "fork").values()
    assert names(reader) == ["around", "after"]


def test_a_spawned_child_joins_the_run_of_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        dedent(
            """
            import multiprocessing, sys, tracekit
            from tracekit import recorder

            def child(rank):
                tracekit.start(agent=False)
                recorder.bind_identity(rank=rank, world_size=2)
                with tracekit.span("work"):
                    pass

            if __name__ == "__main__":
                tracekit.start(run="spawn", dir=sys.argv[1], agent=False)
                context = multiprocessing.get_context("spawn")
                children = [context.Process(target=child, args=(rank,)) for rank in range(2)]
                for process in children: process.start()
                for process in children: process.join()
            """
        )
    )
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=60)
    folder = tmp_path / "spawn" / "attempt-000" / "journal"
    readers = [open_journal(head) for head in find_journals(folder)]
    assert sorted((reader.rank, names(reader)) for reader in readers) == [
        (0, []),
        (0, ["work"]),
        (1, ["work"]),
    ]
    assert [reader.provisional for reader in readers if not names(reader)] == [True]
    assert len({reader.identity["uid"] for reader in readers}) == 1


def test_an_uncaught_exception_is_noted_and_shown_as_without_tracing(tmp_path: Path) -> None:
    done = run_script(
        """
        import sys, tracekit
        tracekit.start(run="raise", dir=sys.argv[1], rank=0, world_size=1, agent=False)
        def train():
            raise RuntimeError("no more data")
        with tracekit.step(0):
            train()
        """,
        str(tmp_path),
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: no more data")
    assert "tracekit" not in done.stderr.replace("import sys, tracekit", "")
    (reader,) = journals(tmp_path / "raise").values()
    (fact,) = [fact for fact in reader.definitions.facts if fact.name == "exception"]
    assert "no more data" in str(fact)


def test_the_job_does_not_keep_its_agent_as_a_child_with_open_pipes(tmp_path: Path) -> None:
    done = run_script(
        """
        import sys, tracekit
        tracekit.start(run="agent", dir=sys.argv[1], rank=0, world_size=1)
        with tracekit.step(0):
            pass
        """,
        str(tmp_path),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stacks_can_be_asked_for_also_where_the_parent_ignores_the_signal(tmp_path: Path) -> None:
    script = """
        import json, signal, subprocess, sys, tracekit
        session = tracekit.start(run="outer", dir=sys.argv[1], rank=0, world_size=1, agent=False)
        assert session._stacks.number
        tracekit.stop()
        if len(sys.argv) == 2:
            subprocess.run([sys.executable, sys.argv[0], sys.argv[1], "inner"], check=True)
        """
    path = tmp_path / "script.py"
    path.write_text(dedent(script))
    subprocess.run([sys.executable, str(path), str(tmp_path)], check=True, timeout=60)


def test_a_process_group_that_confirms_the_rank_is_written_down_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = tracekit.start(run="same", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    assert session is not None
    recorder.bind_identity(rank=0, world_size=1, uid_store=lambda key, mine: mine)
    tracekit.stop()
    (path,) = (session.run_dir / "attempt-000" / "ranks").glob("rank-*.json")
    assert json.loads(path.read_text())["uid_source"] == "store"
    assert caplog.messages == []


def test_the_user_says_the_role_of_a_rank(tmp_path: Path) -> None:
    role = {"dp": 3, "pp": 0, "tp": 1}
    session = tracekit.start(
        run="role", dir=str(tmp_path), rank=7, world_size=16, agent=False, role=role
    )
    assert session is not None
    recorder.bind_identity(rank=7, world_size=16, uid_store=lambda key, mine: mine)
    with tracekit.as_rank(8):
        tracekit.event("here")
    tracekit.stop()
    ranks = {
        json.loads(path.read_text())["rank"]: json.loads(path.read_text())["role"]
        for path in (session.run_dir / "attempt-000" / "ranks").glob("rank-*.json")
    }
    assert ranks == {7: role, 8: {}}


@pytest.mark.parametrize("role", ["dp", {"dp": "0"}, {0: 1}])
def test_a_role_that_is_none_is_refused(role: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="role= needs numbers by name"):
        tracekit.start(dir=str(tmp_path), rank=0, world_size=1, role=role)  # type: ignore[arg-type]
