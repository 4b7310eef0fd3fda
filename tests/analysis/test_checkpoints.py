"""Whether all ranks save the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.telling import found, silent, verdict
from tracekit.findings import Certainty, Severity
from tracekit.testing import RunBuilder

ID = "checkpoint.skew"


def saved(world_size: int = 3, saves: int = 3, **odd: Any) -> RunBuilder:
    """Ranks that saved a few times; the last one says something else in the second save."""
    run = RunBuilder(world_size=world_size, jitter=0.05)
    run.steps(30)
    for number in range(saves):
        for rank in range(world_size):
            state = {
                "step": 10 * (number + 1),
                "save_counter": number + 1,
                "variables": 12,
                "checksum": "aa",
            }
            if rank == world_size - 1 and number == 1:
                state |= odd
            run.fact("checkpoint_state", state, rank)
    return run


def test_equal_checkpoints_are_no_finding() -> None:
    assert silent(saved())


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", 19), ("save_counter", 7), ("variables", 13), ("checksum", "bb")],
)
def test_the_rank_that_saved_something_else_is_named(name: str, value: Any) -> None:
    run = saved(**{name: value})
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.certainty) == ((2,), Certainty.PROVEN)
    assert (finding.severity, finding.evidence["differs"]) == (Severity.WARNING, name)
    assert finding.evidence["save"] == 2
    assert verdict(run).symptom == "abnormal"


def test_of_two_ranks_nothing_tells_which_is_right() -> None:
    (finding,) = found(saved(2, step=19), ID)
    assert finding.ranks == (0, 1)
    assert "nothing tells which is right" in finding.title


def test_a_save_that_not_all_have_made_yet_is_not_compared() -> None:
    run = saved()
    run.fact("checkpoint_state", {"step": 40, "save_counter": 4}, 0)
    assert silent(run)


def test_what_one_rank_saves_beside_the_others_is_not_compared() -> None:
    run = saved()
    states = [one for one in run.facts if one["name"] == "checkpoint_state"]
    run.facts = [one for one in run.facts if one["name"] != "checkpoint_state"]
    run.fact("checkpoint_state", {"step": 5, "variables": 3, "checksum": "of the export"}, 0)
    run.facts += states
    assert silent(run)
    run = saved(checksum="bb")
    run.fact("checkpoint_state", {"step": 40, "variables": 3, "checksum": "of the export"}, 0)
    (finding,) = found(run, ID)
    assert finding.ranks == (2,)


def test_ranks_with_other_parts_of_the_model_save_other_things() -> None:
    run = saved(2, saves=2, variables=13, checksum="bb")
    for rank in range(2):
        run.fact("role", {"dp": 0, "pp": rank}, rank)
    assert found(run, ID) == []
