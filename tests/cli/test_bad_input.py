"""Runs in a bad state: a clear line each, the right exit code, and what is readable is read."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.cli.conftest import Call, make_run


def verdict(call: Call, *arguments: str | Path) -> dict[str, Any]:
    done = call("analyze", *arguments, "--format", "json")
    assert (done.code, done.err) == (0, "")
    result: dict[str, Any] = json.loads(done.out)
    return result


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


@pytest.mark.parametrize("command", ["analyze", "compact", "collect", "agent"])
def test_a_directory_that_is_not_there(call: Call, tmp_path: Path, command: str) -> None:
    refused = call(command, tmp_path / "gone")
    assert refused.code == 2
    assert f"{tmp_path / 'gone'}: does not exist" in refused.line


@pytest.mark.parametrize("command", ["analyze", "compact", "collect", "agent"])
def test_an_empty_directory(call: Call, tmp_path: Path, command: str) -> None:
    refused = call(command, tmp_path)
    assert refused.code == 2
    assert f"{tmp_path}: the directory is empty" in refused.line


@pytest.mark.parametrize("command", ["analyze", "compact", "collect", "agent"])
def test_a_directory_that_is_no_run(call: Call, tmp_path: Path, command: str) -> None:
    (tmp_path / "photo.jpg").touch()
    refused = call(command, tmp_path)
    assert refused.code == 2
    assert f"{tmp_path}: not a run directory" in refused.line


def test_a_file_is_no_run(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command, words in (
        ("analyze", "neither a run directory nor a file of a known kind"),
        ("compact", "a file, not a run directory"),
    ):
        refused = call(command, tmp_path / "file")
        assert refused.code == 2
        assert words in refused.line


def test_a_folder_of_runs_names_them(call: Call, tmp_path: Path) -> None:
    make_run(tmp_path, "monday")
    refused = call("analyze", tmp_path)
    assert refused.code == 2
    assert "monday" in refused.line


def test_a_run_in_which_nothing_was_recorded(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run" / "attempt-000" / "journal").mkdir(parents=True)
    refused = call("analyze", tmp_path / "run")
    assert refused.code == 2
    assert f"{tmp_path / 'run'}: nothing was recorded" in refused.line


def test_ranks_that_are_missing_are_named(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for path in run.rglob("rank-00001.*"):
        path.unlink()
    result = verdict(call, run)
    assert result["run"]["ranks"] == [0, 2]
    assert result["run"]["missing_ranks"] == [1]
    assert "coverage.partial" in ids(result)
    text = call("analyze", run)
    assert text.code == 0
    assert "rank 1" in text.out


def test_the_last_attempt_is_analyzed_and_that_is_said(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    second = make_run(tmp_path / "other", steps=5)
    shutil.move(second / "attempt-000", run / "attempt-001")
    for head in (run / "attempt-001" / "journal").glob("*.head.tkj"):
        head.write_bytes(head.read_bytes().replace(b'"attempt": 0', b'"attempt": 1'))
    result = verdict(call, run)
    assert result["run"]["steps"] == 5
    text = call("analyze", run)
    assert text.code == 0
    assert "attempt 1" in text.out


def test_two_processes_that_claim_one_rank_are_told(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    other = make_run(tmp_path / "other", steps=9)
    for path in other.rglob("rank-00001.*"):
        twin = path.name.replace(f"-{path.name.split('-')[2].split('.')[0]}.", "-999999.")
        shutil.copy(path, run / path.relative_to(other).with_name(twin))
    result = verdict(call, run)
    assert "coverage.duplicate_rank" in ids(result)
    assert result["run"]["ranks"] == [0, 1]


def newer(head: Path) -> None:
    """Make a journal one of a version to come."""
    with open(head, "r+b") as file:
        file.seek(8)
        (version,) = struct.unpack("<I", file.read(4))
        file.seek(8)
        file.write(struct.pack("<I", version + 1))


def test_a_run_of_a_newer_version(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for head in run.rglob("*.head.tkj"):
        newer(head)
    refused = call("analyze", run)
    assert refused.code == 2
    assert ".head.tkj: written in version 2 of the format" in refused.line


def test_one_journal_of_a_newer_version_does_not_stop_the_rest(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (head,) = run.rglob("rank-00001.*.head.tkj")
    newer(head)
    result = verdict(call, run)
    assert result["run"]["ranks"] == [0]
    ((path, reason),) = [(one["path"], one["reason"]) for one in result["coverage"]["skipped"]]
    assert path.endswith(head.name)
    assert "version 2" in reason


def test_one_run_that_cannot_be_read_does_not_stop_the_others(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    done = call("analyze", tmp_path / "gone", run, "--format", "json")
    assert done.code == 2
    assert f"{tmp_path / 'gone'}: does not exist" in done.line
    assert json.loads(done.out)["runs"][0]["run"]["world_size"] == 2


# Read-only and full: in a mount of its own


def mounted(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount things nobody else sees; $TRACEKIT is the program."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-euc", script, "sh"]
    environment = {"TRACEKIT": f"{sys.executable} -m tracekit", "PATH": "/usr/sbin:/usr/bin:/bin"}
    environment["PYTHONPATH"] = str(Path(tracekit.__file__).parents[1])
    try:
        probe = subprocess.run([*command[:3], "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if probe.returncode:
        pytest.skip("nothing may be mounted here")
    command += [str(argument) for argument in arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


READ_ONLY = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; '


def test_a_read_only_run_is_analyzed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    done = mounted(READ_ONLY + '$TRACEKIT analyze "$1" --format json', run)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["run"]["ranks"] == [0, 1]


@pytest.mark.parametrize("command", ["compact", "collect"])
def test_a_read_only_run_cannot_be_changed(tmp_path: Path, command: str) -> None:
    run = make_run(tmp_path)
    done = mounted(READ_ONLY + f'$TRACEKIT {command} "$1"', run)
    if command == "compact":
        assert done.returncode == 2
        assert "Read-only file system" in done.stderr
        assert done.stderr.count("\n") == 1
        assert str(run) in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")  # nothing to bring


FULL = """
mount -t tmpfs -o size=40m tmpfs "$1"
cp -r "$2" "$1/run"
cat /dev/zero > "$1/filler" 2> /dev/null || true
"""


def test_a_run_on_a_full_disk_is_analyzed(tmp_path: Path) -> None:
    run, disk = make_run(tmp_path), tmp_path / "disk"
    disk.mkdir()
    done = mounted(FULL + '$TRACEKIT analyze "$1/run" --format json', disk, run)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["run"]["ranks"] == [0, 1]


def test_a_report_that_does_not_fit_is_said(tmp_path: Path) -> None:
    run, disk = make_run(tmp_path), tmp_path / "disk"
    disk.mkdir()
    script = FULL + '$TRACEKIT analyze "$1/run" -o "$1/report.txt" || { ls -A "$1"; exit 9; }'
    done = mounted(script, disk, run)
    assert done.returncode == 9
    assert done.stderr == f"tracekit: {disk}/report.txt: No space left on device\n"
    assert done.stdout.split() == ["filler", "run"]


def test_compacting_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    run, disk = make_run(tmp_path), tmp_path / "disk"
    disk.mkdir()
    script = """
    $TRACEKIT compact "$1/run" || code=$?
    echo "$code"
    rm "$1/filler"
    $TRACEKIT analyze "$1/run" --format json
    """
    done = mounted(FULL + script, disk, run)
    assert done.returncode == 0
    code, _, result = done.stdout.partition("\n")
    assert code == "2"
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert json.loads(result)["run"]["steps"] == 3
