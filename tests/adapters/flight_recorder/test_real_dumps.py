"""Dumps that jobs really left: two public incidents, and hangs made here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.flight_recorder.samples import hangs, verdict

JOB = Path(__file__).with_name("hangs.py")
ORIGIN = "github.com/NVIDIA/nvidia-resiliency-ext, tests/attribution/unit/fr_traces"


def incident(name: str, folder: Path) -> Path:
    """The dumps of a public incident alone, without the file that tells what was injected."""
    data = Path(os.environ.get("TRACEKIT_TEST_DATA", "")) / "flight_recorder" / name
    if not os.environ.get("TRACEKIT_TEST_DATA") or not (data / "_dump_0").is_file():
        pytest.skip(f"TRACEKIT_TEST_DATA has no flight_recorder/{name}; it comes from {ORIGIN}")
    for path in data.glob("_dump_*"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize(
    ("name", "faulty"), [("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14))]
)
def test_the_faulty_ranks_of_public_incidents_are_named_and_no_others(
    tmp_path: Path, name: str, faulty: tuple[int, ...]
) -> None:
    analysis = verdict(incident(name, tmp_path))
    found = hangs(analysis)
    assert tuple(sorted(rank for _, ranks, _ in found for rank in ranks)) == faulty
    assert {certainty for _, _, certainty in found} == {"likely"}
    assert analysis.symptom == "hang"
    assert analysis.run.missing_ranks == ()


def hang(kind: str, folder: Path, ranks: int = 3) -> Path:
    """Have a job hang, and wait until it has dumped."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    pythons = [
        subprocess.Popen([sys.executable, JOB, kind, folder, *map(str, (r, ranks, port))])
        for r in range(ranks)
    ]
    for python in pythons:
        try:
            python.wait(60)
        finally:
            python.kill()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["pickle", "json"])
def test_a_hang_is_told_from_real_dumps_of_gloo(tmp_path: Path, format_: str) -> None:
    """On a busy machine a dump may be from before the others came: then nobody is accused."""
    for turn in range(4):
        folder = tmp_path / str(turn)
        folder.mkdir()
        hang("missing", folder)
        twice, once = (verdict(folder / format_ / look) for look in ("", "second"))
        assert all(set(ranks) <= {1} for _, ranks, _ in (*hangs(twice), *hangs(once)))
        if hangs(twice) and hangs(once):
            break
    assert hangs(twice) == [("hang.missing_rank", (1,), "proven")]
    assert hangs(once) == [("hang.missing_rank", (1,), "likely")]
    if format_ == "pickle":
        (frame,) = once.findings[0].evidence["last_frames"].values()
        assert "hangs.py:" in frame


@pytest.mark.slow
def test_another_order_is_told_from_real_dumps_of_gloo(tmp_path: Path) -> None:
    analysis = verdict(hang("order", tmp_path) / "pickle")
    assert hangs(analysis) == [("hang.mismatch", (1,), "proven")]


@pytest.mark.slow
def test_another_size_is_told_from_real_dumps_though_ranks_abort(tmp_path: Path) -> None:
    analysis = verdict(hang("size", tmp_path) / "json")
    (found,) = hangs(analysis)
    assert (found[0], found[2]) == ("hang.mismatch", "proven")
    assert 1 in found[1]


@pytest.mark.slow
def test_a_killed_rank_left_no_dump_so_dumps_cannot_tell(tmp_path: Path) -> None:
    analysis = verdict(hang("killed", tmp_path) / "pickle")
    assert analysis.symptom != "healthy"
    assert [one for one in hangs(analysis) if one[1]] == []
    assert any("no dump of rank 1: cannot tell" in one.title for one in analysis.findings)


@pytest.mark.slow
def test_dumps_of_a_job_that_ends_well_accuse_nobody(tmp_path: Path) -> None:
    assert hangs(verdict(hang("healthy", tmp_path) / "pickle")) == []
