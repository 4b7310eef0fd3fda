"""Foreign files are found by their content and read by whoever knows them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.adapters.xplane import spaces
from tracekit.adapters import _reading
from tracekit.adapters._reading import (
    Importer,
    Intake,
    Progress,
    find_files,
    importers,
    read_files,
)
from tracekit.dataset import EVENTS, open_run
from tracekit.errors import InputError


class Notes:
    """Reads files that begin with NOTES: a line each is an event of rank 0."""

    name = "notes"

    def recognizes(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"NOTES")

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        for path in paths:
            progress(path.name)
            lines = path.read_text().splitlines()[1:]
            if not lines:
                raise ValueError("empty")
            rows = [
                {"run_id": intake.run_id, "attempt": 0, "rank": 0, "name": line, "time_ns": at}
                for at, line in enumerate(lines)
            ]
            intake.write("events", pa.Table.from_pylist(rows, EVENTS), world_size=1)
            intake.took(path, self.name)


def test_every_built_in_importer_is_one() -> None:
    found = importers()
    assert list(found)[: len(_reading.BUILT_IN)] == list(_reading.BUILT_IN)
    for name, importer in found.items():
        assert isinstance(importer, Importer)
        assert importer.name == name


def test_content_decides_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.xplane.pb").write_text("NOTES\nhello")
    (tmp_path / "b.txt").write_bytes(spaces.worker(0))
    (tmp_path / "c.txt").write_text("something else")
    (tmp_path / "empty.xplane.pb").touch()
    (tmp_path / ".hidden").write_text("NOTES\n")
    found = find_files([tmp_path], {"notes": Notes(), **importers()})
    assert found.by_kind["notes"] == [tmp_path / "a.xplane.pb"]
    assert found.by_kind["xplane"] == [tmp_path / "b.txt"]
    assert found.unknown[-1] == tmp_path / "empty.xplane.pb"
    assert found.files == 4


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("NOTES\nhello")
    found = find_files([tmp_path, tmp_path / "a"], {"notes": Notes()})
    assert found.by_kind == {"notes": [tmp_path / "a"]}


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        find_files([tmp_path / "gone"], {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("NOTES\n")
    (tmp_path / "a").chmod(0)
    found = find_files([tmp_path], {"notes": Notes()})
    assert found.unreadable == [(tmp_path / "a", "Permission denied")]


def test_an_importer_that_fails_costs_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("NOTES\nhello\nworld")
    (tmp_path / "b").write_text("NOTES")
    (tmp_path / "c").write_bytes(spaces.worker(0))
    known = {"notes": Notes(), **importers()}
    intake = Intake(tmp_path / "run")
    intake.run_dir.mkdir()
    read_files(find_files([tmp_path], known), known, intake, lambda message: None)
    assert intake.read == {tmp_path / "a": "notes", tmp_path / "c": "xplane"}
    assert intake.skipped == [(tmp_path / "b", "cannot be read: ValueError: empty")]
    with open_run(tmp_path / "run") as run:
        assert run.table("events")["name"].to_pylist() == ["hello", "world"]
        facts = run.table("facts").to_pylist()
    (read,) = [json.loads(fact["value"]) for fact in facts if fact["name"] == "import"]
    assert read["kind"] == "xplane"


def test_importers_of_other_packages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tracekit.importers]\nnotes = tests.adapters.test_reading:Notes\n"
        "broken = no_such_module:Importer\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = importers()
    assert "notes" in found
    assert "broken" not in found
