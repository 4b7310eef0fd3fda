"""A version of the journal that was shipped is read for ever."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.journal.golden.tables import tables_of

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.glob("v*")))
def test_journals_of_every_version_are_read_as_on_their_first_day(
    version: str, tmp_path: Path
) -> None:
    for path in (GOLDEN / version).glob("*.gz"):
        (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert tables_of(tmp_path) == (GOLDEN / version / "expected.jsonl").read_text()


def test_there_are_golden_files_of_the_current_version() -> None:
    from tracekit.journal.format import VERSION

    assert (GOLDEN / f"v{VERSION}" / "expected.jsonl").exists()
