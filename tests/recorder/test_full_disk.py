"""A disk without room: training goes on, the loss is counted and said once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recorder.tape import STEM, recording
from tracekit import recorder
from tracekit.journal.format import Live

SEGMENT = 1 << 18


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of a few mebibytes, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = getattr(request, "param", "2m")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def record(count: int) -> None:
    for _ in range(count):
        with recorder.span("work"):
            pass


def test_on_a_full_disk_training_goes_on_and_the_loss_is_counted(small_disk: Path) -> None:
    with recording(small_disk, segment_bytes=SEGMENT) as tape:
        record(30_000)
        kept = len(tape.spans("work"))
        tape.recorder.close()
        assert 0 < kept < 30_000
        assert tape.counted(Live.DROPPED) == 30_000 - kept
        assert len(tape.said()) == 1
        assert "No space left" in tape.said()[0]
        assert "training goes on" in tape.said()[0]


def test_where_not_even_the_head_fits_nothing_is_kept_and_that_is_said(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(1 << 20))
    with recording(small_disk) as tape:
        record(1_000)
        assert len(tape.said()) == 1
        assert "nothing is kept" in tape.said()[0]
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


@pytest.mark.parametrize("small_disk", ["1m", "3m"], indirect=True)
def test_a_training_on_a_full_disk_ends_well(small_disk: Path) -> None:
    script = """
import sys, tracekit
tracekit.start(run="full", dir=sys.argv[1], rank=0, world_size=1, agent=False)
for number in range(200):
    with tracekit.step(number):
        for _ in range(500):
            with tracekit.span("work"):
                pass
tracekit.stop()
print("trained")
"""
    command = [sys.executable, "-c", script, str(small_disk)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "trained\n")
    (told,) = ended.stderr.splitlines()
    assert "No space left on device" in told


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP])
def test_what_cannot_be_reserved_goes_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    reserve = os.posix_fallocate
    made = 0

    def refuse(fd: int, offset: int, size: int) -> None:
        nonlocal made
        made += size == SEGMENT
        if made > 1:
            raise OSError(reason, os.strerror(reason))
        reserve(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with recording(tmp_path, segment_bytes=SEGMENT) as tape:
        record(10_000)
        assert tape.counted(Live.MEMORY) == 1
        assert len(tape.said()) == 1
        assert os.strerror(reason) in tape.said()[0]
        assert len(list(tmp_path.glob(f"{STEM}.0*.tkj"))) == 1
        kept = len(tape.spans("work"))
        tape.recorder.close()
        assert tape.counted(Live.DROPPED) == 10_000 - kept


def test_beyond_the_quota_the_oldest_go_and_are_counted(tmp_path: Path) -> None:
    with recording(tmp_path, segment_bytes=SEGMENT, quota_bytes=4 * SEGMENT) as tape:
        record(20_000)
        with recorder.span("last"):
            pass
        rows = tape.spans()
        assert rows[-1]["name"] == "last"
        assert len(tape.writer.files()) <= 5
        evicted = tape.counted(Live.EVICTED)
        assert evicted > 0
        # Chunks that threads left for good before they were full count as if they had been.
        assert tape.counted(Live.DROPPED) >= 20_001 - len(rows)
        assert len(tape.said()) == 1
        assert "quota" in tape.said()[0]


def test_a_segment_in_use_is_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("a mapped file must never shrink")

    for name in ("truncate", "ftruncate"):
        monkeypatch.setattr(os, name, forbidden)
    with recording(tmp_path, segment_bytes=SEGMENT, quota_bytes=3 * SEGMENT) as tape:
        for _ in range(5):
            record(4_000)
            begun = tape.counted(Live.SEGMENTS)
            paths = [tmp_path / f"{STEM}.{number:06d}.tkj" for number in range(begun)]
            assert {path.stat().st_size for path in paths if path.exists()} == {SEGMENT}
