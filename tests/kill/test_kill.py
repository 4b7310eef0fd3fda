"""SIGKILL at random moments: what was acknowledged is there, once (long: benchmarks/kill.py)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tracekit
from tests.kill.victims import MOMENTS, kill_one
from tracekit.dataset import finalize, open_run
from tracekit.journal.reader import open_journal


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_was_acknowledged_is_there_once(tmp_path: Path, moment: str) -> None:
    chance = random.Random(moment)
    outcomes = [kill_one(tmp_path / str(number), moment, chance) for number in range(5)]
    for outcome in outcomes:
        assert outcome.wrong == ()
        assert outcome.found >= outcome.acknowledged > 0
    parts = sum(outcome.parts for outcome in outcomes)
    assert parts > 0 if moment == "converting" else parts == 0


def test_a_segment_whose_making_was_cut_short_is_no_loss(tmp_path: Path) -> None:
    tracekit.start(run="run", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    with tracekit.span("work"):
        pass
    tracekit.stop()
    (head,) = tmp_path.rglob("*.head.tkj")
    (head.parent / head.name.replace(".head.", ".000009.")).touch()
    with open_run(tmp_path / "run") as run:
        assert run.coverage.skipped == ()
        assert run.table("spans", ["name"]).to_pylist() == [{"name": "work"}]
    assert finalize(open_journal(head), tmp_path / "run").final
    assert list(tmp_path.rglob("*.tkj")) == []


@pytest.mark.slow
def test_a_slot_that_a_kill_tore_is_met_and_left_out(tmp_path: Path) -> None:
    chance = random.Random(1)
    for number in range(200):
        outcome = kill_one(tmp_path / str(number), "recording", chance)
        assert outcome.wrong == ()
        if outcome.torn:
            return
    pytest.fail("no kill of 200 tore a slot: this has not tested anything")
