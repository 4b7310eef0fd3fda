"""``tracekit export`` writes a file that is there as a whole, or says in one line why not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, make_run
from tests.exporters.runs import write_run
from tracekit.testing.builder import RunBuilder


def chrome(text: str | bytes) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def spans(events: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(e["pid"], e["args"]["step"], e["name"]) for e in events if e["ph"] == "X"]


def test_a_run_becomes_a_file(call: Call, tmp_path: Path) -> None:
    run, file = make_run(tmp_path), tmp_path / "trace.json"
    done = call("export", run, "--to", "chrome", "-o", file)
    assert (done.code, done.out) == (0, "")
    assert f"12 spans of 2 ranks and 0 arrows in {file}" in done.line
    assert spans(chrome(file.read_bytes()))[:2] == [(1, 0, "train_step"), (1, 0, "forward")]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["trace.json"]


def test_without_a_file_stdout_has_the_trace_and_nothing_else(call: Call, tmp_path: Path) -> None:
    done = call("export", make_run(tmp_path), "--to", "chrome", "--steps", "1:1")
    assert done.code == 0
    assert {step for _, step, _ in spans(chrome(done.out))} == {1}


def test_perfetto_has_a_format_of_its_own(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    file = tmp_path / "trace.pftrace"
    done = call("export", make_run(tmp_path), "--to", "perfetto", "-o", file)
    assert done.code == 0
    trace = protos.Trace()
    trace.ParseFromString(file.read_bytes())
    begins = [p for p in trace.packet if p.track_event.type == protos.TrackEvent.TYPE_SLICE_BEGIN]
    assert len(begins) == 12


def test_a_file_called_tar_has_a_trace_a_rank_and_a_pipe_takes_the_same(
    call: Call, tmp_path: Path
) -> None:
    pytest.importorskip("perfetto")
    run, file = make_run(tmp_path), tmp_path / "trace.tar"
    done = call("export", run, "--to", "perfetto", "-o", file)
    assert (done.code, done.out) == (0, "")
    assert "12 spans of 2 ranks and no arrows, as none leads from file to file in" in done.line
    with tarfile.open(file) as tar:
        assert len(tar.getnames()) == 3
    command = [sys.executable, "-m", "tracekit", "export", str(run), "--to", "perfetto"]
    piped = subprocess.run([*command, "--per-rank"], capture_output=True, check=True)
    assert piped.stdout == file.read_bytes()
    refused = call("export", run, "--to", "perfetto", "-o", file, "--max-spans", "9")
    assert "these steps fit: --steps 0:1 or --steps 1:2" in refused.line


def test_clocks_that_nobody_compared_are_told(call: Call, tmp_path: Path) -> None:
    built = RunBuilder(2, hosts=("node-a", "node-b"))
    built.step()
    built.spans = [row for row in built.spans if row["kind"] != "comm"]  # hosts never met
    done = call("export", write_run(built, tmp_path / "run"), "--to", "chrome")
    assert done.code == 0
    assert "2 clocks, each as its host had it: their offsets are not known" in done.err


def test_a_missing_extra_is_named_in_one_line(python: Call, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['perfetto'] = None; from tracekit.cli import main;"
        "sys.exit(main(['export', sys.argv[1], '--to', 'perfetto', '-o', sys.argv[2]]))"
    )
    refused = python(code, make_run(tmp_path), tmp_path / "trace")
    assert refused.code == 2
    assert "pip install 'tracekit-blackbox[perfetto]'" in refused.line
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "nowhere"], "nowhere"),
        ([], "--to"),
        (["--to", "chrome", "--steps", "5:2"], "the first step comes after the last"),
        (["--to", "chrome", "--steps", "7:9"], "the run has steps 0:2"),
        (["--to", "chrome", "-o", "x.tar"], "only Perfetto reads a TAR of ranks: --to perfetto"),
        (["--to", "chrome", "--per-rank"], "only Perfetto reads a TAR of ranks: --to perfetto"),
        (["--to", "chrome", "--max-spans", "9"], "these steps fit: --steps 0:1 or --steps 1:2"),
        (["--to", "chrome", "-o", "/no/such/folder/x"], "/no/such/folder/x: No such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    call: Call, tmp_path: Path, arguments: list[str], said: str
) -> None:
    refused = call("export", make_run(tmp_path), *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.line


def test_an_export_that_fails_leaves_an_older_file_alone(call: Call, tmp_path: Path) -> None:
    run, file = make_run(tmp_path), tmp_path / "trace.json"
    file.write_text("old")
    refused = call("export", run, "--to", "chrome", "--max-spans", "1", "-o", file)
    assert refused.code == 2
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["trace.json"]


def test_a_directory_that_is_no_run_is_refused(call: Call, tmp_path: Path) -> None:
    refused = call("export", tmp_path / "gone", "--to", "chrome")
    assert refused.code == 2
    assert f"{tmp_path / 'gone'}: does not exist" in refused.line


def test_what_cannot_be_read_is_left_out_and_named(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert call("compact", run).code == 0
    (compacted,) = (run / "spans").rglob("*.parquet")
    shutil.copy(compacted, run / "spans" / "damaged.parquet")
    (run / "spans" / "damaged.parquet").write_bytes(b"PAR1")
    done = call("export", run, "--to", "chrome")
    assert done.code == 0
    assert "damaged.parquet" in done.err
    assert len(spans(chrome(done.out))) == 12
