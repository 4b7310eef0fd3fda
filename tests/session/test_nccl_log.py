"""What is asked of NCCL, where its log goes, and that a run's own log is read unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, call, python
from tracekit.cli._run.target import parse
from tracekit.session._nccl_log import NcclLog

__all__ = ["call", "python"]

JOB = """
import os, socket, tracekit
tracekit.start(run="r", dir={folder!r}, rank=3, world_size=4, agent=False, nccl_log=True)
with tracekit.step(0):
    pass
name = os.environ["NCCL_DEBUG_FILE"]
host = socket.gethostname().partition(".")[0]
head = f"[2024-05-01 10:00:00+0000] {{host}}:{{os.getpid()}}:7 [0] "
with open(name.replace("%h", host).replace("%p", str(os.getpid())), "w") as file:
    file.write(head + "NCCL INFO Using network IB\\n")
    file.write(head + "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9"
               " bytes, error: No space left on device (28)\\n")
tracekit.stop()
"""


def test_what_nccl_reads_is_set_into_the_run(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    NcclLog(environ).point(tmp_path)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert "COLL" not in environ["NCCL_DEBUG_SUBSYS"]
    assert environ["NCCL_DEBUG_FILE"] == str(tmp_path / "nccl" / "%h.%p.log")
    assert (tmp_path / "nccl").is_dir()


def test_what_the_user_set_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}
    NcclLog(environ).point(tmp_path)
    assert (environ["NCCL_DEBUG"], environ["NCCL_DEBUG_SUBSYS"]) == ("WARN", "ALL")
    theirs = {"NCCL_DEBUG_FILE": "/theirs/%p"}
    NcclLog(theirs).point(tmp_path)
    assert theirs == {"NCCL_DEBUG_FILE": "/theirs/%p"}


def test_the_log_moves_with_the_run(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    log = NcclLog(environ)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        log.point(tmp_path / name)
    assert environ["NCCL_DEBUG_FILE"] == str(tmp_path / "two" / "nccl" / "%h.%p.log")
    assert not (tmp_path / "one" / "nccl").exists()


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    NcclLog(environ).point(tmp_path / "missing")
    assert environ == {}


def test_run_has_a_flag_for_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    target = parse(["--nccl-log", "--run", "x", str(script), "--nccl-log"])
    assert target is not None
    assert (target.nccl_log, target.arguments) == (True, ("--nccl-log",))


def test_the_log_in_a_run_is_read_unasked_and_its_process_is_its_rank(
    tmp_path: Path, call: Call, python: Call
) -> None:
    done = python(JOB.format(folder=str(tmp_path)))
    assert done.code == 0, done.err
    shown = json.loads(call("analyze", tmp_path / "r", "--format", "json").out)
    finding = next(f for f in shown["findings"] if f["id"] == "host.limit")
    assert finding["ranks"] == [3]
    assert "/attempt-000/nccl/" in finding["evidence"]["lines"][0]
