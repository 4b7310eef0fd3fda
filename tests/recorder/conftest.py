"""A recorder that every test of this folder can have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorder.tape import Tape, recording


@pytest.fixture
def tape(tmp_path: Path) -> Iterator[Tape]:
    with recording(tmp_path) as tape:
        yield tape
