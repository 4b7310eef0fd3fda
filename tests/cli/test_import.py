"""``tracekit import``, and ``tracekit analyze`` of what other tools recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adapters.xplane import spaces
from tests.adapters.xplane.test_windows import job, window
from tests.cli.conftest import Call, make_run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The profiles of two workers, and a file that is none of ours."""
    folder = spaces.recorded(tmp_path / "logs")
    (folder / "stdout.txt").write_text("epoch 1\n")
    return folder


def test_a_folder_becomes_a_run(call: Call, logs: Path, tmp_path: Path) -> None:
    done = call("import", logs, "-o", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2 of 3 files read (xplane, 0.2 MB): 8 facts, ")
    shown = call("analyze", tmp_path / "run", "--format", "json")
    assert shown.code == 0
    told = json.loads(shown.out)
    assert told["run"]["ranks"] == [0, 1]
    assert told["run"]["steps"] == 4
    assert told["collectives"][0]["op"] == "all_reduce"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_foreign_files_are_analyzed_as_they_are(call: Call, logs: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = call("analyze", logs, "--format", "json")
    assert done.code == 0
    told = json.loads(done.out)
    assert told["run"]["world_size"] == 2
    assert told["coverage"]["files"] == 3
    assert told["coverage"]["skipped"] == []
    assert "2 of 3 files read" in done.line
    assert sorted(tmp_path.rglob("*")) == before
    text = call("analyze", *sorted(logs.rglob("*.pb")))
    assert "2 ranks on one host" in text.out


def test_ranks_that_are_missing_are_named(call: Call, logs: Path) -> None:
    done = call("analyze", logs / "worker-0", "--format", "json")
    told = json.loads(done.out)
    assert told["run"]["missing_ranks"] == [1]


def test_a_damaged_file_is_named_and_the_rest_is_read(call: Call, logs: Path) -> None:
    cut = next((logs / "worker-1").rglob("*.pb"))
    cut.write_bytes(cut.read_bytes()[:5000])
    done = call("analyze", logs, "--format", "json")
    assert done.code == 0
    assert f"tracekit: {cut}: after 0 planes: cut" in done.err
    told = json.loads(done.out)
    assert [one["path"] for one in told["coverage"]["skipped"]] == [str(cut)]
    assert told["run"]["ranks"] == [0]


@pytest.mark.parametrize("command", ["import", "analyze"])
def test_nothing_but_damaged_files(call: Call, logs: Path, tmp_path: Path, command: str) -> None:
    for path in logs.rglob("*.pb"):
        path.write_bytes(path.read_bytes()[:5000])
    more = ("-o", tmp_path / "run") if command == "import" else ()
    refused = call(command, logs, *more)
    assert refused.code == 2
    assert "cut, or not a message of this kind (and 1 more like it)" in refused.line
    assert not (tmp_path / "run").exists()


def test_a_file_of_no_known_kind_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_text("no")
    refused = call("import", tmp_path / "host.xplane.pb", "-o", tmp_path / "run")
    assert refused.code == 2
    assert f"{tmp_path / 'host.xplane.pb'}: not a file of a known kind" in refused.line
    refused = call("import", tmp_path, "-o", tmp_path / "run")
    assert refused.code == 2
    assert "no file of a known kind is in it" in refused.line


def test_what_was_named_and_is_not_known_makes_the_code(
    call: Call, logs: Path, tmp_path: Path
) -> None:
    done = call("import", logs, logs / "stdout.txt", "-o", tmp_path / "run")
    assert done.code == 2
    assert f"{logs / 'stdout.txt'}: not a file of a known kind; skipped" in done.line
    assert (tmp_path / "run" / "run.json").exists()


def test_a_directory_that_is_in_use_is_not_written_to(call: Call, logs: Path) -> None:
    refused = call("import", logs, "-o", logs)
    assert refused.code == 2
    assert f"{logs}: is there already" in refused.line


def test_a_path_that_is_not_there(call: Call, tmp_path: Path) -> None:
    refused = call("import", tmp_path / "gone", "-o", tmp_path / "run")
    assert refused.code == 2
    assert f"{tmp_path / 'gone'}: does not exist" in refused.line


def test_runs_and_foreign_files_in_any_mix(call: Call, logs: Path, tmp_path: Path) -> None:
    ours = make_run(tmp_path / "runs")
    done = call("analyze", ours, logs, "--format", "json")
    assert done.code == 0
    first, second = json.loads(done.out)["runs"]
    assert first["run"]["steps"] == 3
    assert second["run"]["steps"] == 4


@pytest.mark.parametrize("command", ["analyze", "compact"])
def test_windows_that_no_agent_read_are_taken(call: Call, tmp_path: Path, command: str) -> None:
    run, stems = job(tmp_path)
    for stem in stems:
        window(run, stem)
    bad = window(run, stems[0], 40, data=b"")
    done = call(command, run, *(["--format", "json"] if command == "analyze" else []))
    assert done.code == 0
    if command == "analyze":
        told = json.loads(done.out)
        assert [one["path"] for one in told["coverage"]["skipped"]] == [str(bad)]
        assert len(list((run / "spans").rglob("part-xplane-*.parquet"))) == 2
    else:
        assert f"{bad}: the file is empty; left as it is" in done.line
