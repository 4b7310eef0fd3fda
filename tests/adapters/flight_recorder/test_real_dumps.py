"""Dumps that jobs of others left: two public incidents, and a job of their shape made here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.adapters.flight_recorder.samples import hangs, verdict

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
