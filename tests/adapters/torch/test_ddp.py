"""DDP training in real processes: nothing changes, and the spans say what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.adapters.torch import jobs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_are_the_same_to_the_bit(ranks: int, tmp_path: Path) -> None:
    jobs.launch(jobs.train_the_same_with_and_without_tracing, ranks, tmp_path)


def test_spans_say_what_happened(tmp_path: Path) -> None:
    jobs.launch(jobs.all_behaviours, 2, tmp_path)
