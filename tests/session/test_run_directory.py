"""All ranks of a job find one directory; two jobs never share one."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tracekit.model import step_trace_id
from tracekit.session._rundir import clock_offset, join_by_cluster, run_directory


def test_a_new_label_gets_the_plain_directory(tmp_path: Path) -> None:
    path, label = run_directory(tmp_path, "resnet", "script", "u1")
    assert (path, label) == (tmp_path / "resnet", "resnet")


def test_without_a_label_the_directory_has_the_uid_in_its_name(tmp_path: Path) -> None:
    path, _ = run_directory(tmp_path, None, "train", "u1")
    assert path == tmp_path / "train-u1"


def test_two_runs_of_one_label_have_directories_and_trace_identities_of_their_own(
    tmp_path: Path,
) -> None:
    first, _ = run_directory(tmp_path, "resnet", "script", "u1")
    second, _ = run_directory(tmp_path, "resnet", "script", "u2")
    assert first != second
    uids = [json.loads((path / "run.json").read_text())["uid"] for path in (first, second)]
    assert step_trace_id(uids[0], 0, 7) != step_trace_id(uids[1], 0, 7)


@pytest.mark.parametrize("label", ["../up", "a/b", " ", "läbel", ".hidden"])
def test_a_label_never_leads_out_of_the_base_directory(tmp_path: Path, label: str) -> None:
    path, _ = run_directory(tmp_path, label, "script", "u1")
    assert path.parent == tmp_path


def _find(base: Path, number: int, found: multiprocessing.Queue[tuple[str, str]]) -> None:
    path, _ = run_directory(base, "resnet", "script", "u1")
    found.put((str(path), str(clock_offset(path, "boot:ns", number))))


def test_ranks_that_start_together_agree_on_directory_and_clock_offset(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    found: multiprocessing.Queue[tuple[str, str]] = context.Queue()
    ranks = [context.Process(target=_find, args=(tmp_path, n, found)) for n in range(8)]
    for process in ranks:
        process.start()
    answers = {found.get(timeout=30) for _ in ranks}
    for process in ranks:
        process.join()
    assert len(answers) == 1


def test_processes_of_one_cluster_join_a_run_and_later_ones_begin_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join_by_cluster(tmp_path, "host:29500", "0.0")
    assert join_by_cluster(tmp_path, "host:29500", "0.1") == first
    assert join_by_cluster(tmp_path, "host:29501", "0.2") != first
    later = time.time() + 121
    monkeypatch.setattr("time.time", lambda: later)
    assert join_by_cluster(tmp_path, "host:29500", "0.3") != first


def test_a_job_that_is_started_again_at_once_is_a_new_run(tmp_path: Path) -> None:
    first = join_by_cluster(tmp_path, "host:29500", "0.0")
    again = join_by_cluster(tmp_path, "host:29500", "0.0")
    assert again != first
    assert join_by_cluster(tmp_path, "host:29500", "0.1") == again


@contextmanager
def another(base: Path, cluster: str) -> Iterator[str]:
    """Another process that has joined as rank 0, and lives; gives its run's uid."""
    code = (
        "import sys; from pathlib import Path; from tracekit.session._rundir import *;"
        "print(join_by_cluster(Path(sys.argv[1]), sys.argv[2], '0.0'), flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(base), cluster]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            yield other.stdout.readline().strip()
        finally:
            other.stdin.close()


def test_two_living_processes_that_are_the_same_member_are_one_job(tmp_path: Path) -> None:
    with another(tmp_path, "host:29500") as first:
        assert join_by_cluster(tmp_path, "host:29500", "0.0", one_job=True) == first
    assert join_by_cluster(tmp_path, "host:29500", "0.0", one_job=True) != first


def test_two_living_processes_under_one_label_may_be_two_jobs(tmp_path: Path) -> None:
    with another(tmp_path, "sweep of 2") as first:
        assert join_by_cluster(tmp_path, "sweep of 2", "0.0") != first
