"""What goes wrong in a real training of one process: said of it, and of no sound one like it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.tensorflow.running import Verdict, processes, python, verdict_of

pytestmark = pytest.mark.slow
JOB = Path(__file__).with_name("alone_job.py")
Runs = Callable[[str], Verdict]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The verdicts on all runs of the job, by name."""
    folder = tmp_path_factory.mktemp("alone")
    with processes([python(JOB, str(folder))], [{}], folder) as (job,):
        _, errors = job.communicate(timeout=280)
    assert job.returncode == 0, errors[-3000:]
    assert "adapter:" not in errors
    known: dict[str, Verdict] = {}

    def of(name: str) -> Verdict:
        if name not in known:
            known[name] = verdict_of(folder / name)
        return known[name]

    return of


@pytest.mark.parametrize(
    "name", ["reduced_means", "reduced_outside", "reduced_inside", "summed_parts", "looked_at"]
)
def test_replicas_whose_values_are_put_together_well_are_no_finding(runs: Runs, name: str) -> None:
    verdict = runs(name)
    assert verdict.ids == set()
    assert (verdict.text["symptom"], verdict.text["run"]["steps"]) == ("healthy", 24)


def test_means_of_replicas_that_are_summed_are_told(runs: Runs) -> None:
    (finding,) = runs("summed_means").found("config.reduction")
    assert (finding["severity"], finding["certainty"]) == ("warning", "likely")
    assert finding["evidence"]["reduced"] == "SUM"
    assert "replica_step() is a mean on each replica" in finding["title"]
    assert "2 times too large" in finding["title"]


def test_a_sum_outside_of_graphs_is_advice_since_nothing_shows_what_is_summed(runs: Runs) -> None:
    (finding,) = runs("summed_outside").found("config.reduction")
    assert (finding["severity"], finding["certainty"]) == ("info", "cannot_tell")
    assert "replica_step() is summed over 2 replicas" in finding["title"]


@pytest.mark.parametrize("name", ["never", "never_outside"])
def test_a_result_that_nobody_reduces_is_told_and_accuses_nobody(runs: Runs, name: str) -> None:
    (finding,) = runs(name).found("config.reduction")
    assert (finding["severity"], finding["certainty"]) == ("info", "cannot_tell")
    assert finding["evidence"] == {"value": "replica_step()", "replicas": 2, "reduced": "none"}


def test_a_value_of_two_replicas_is_recorded_as_their_mean_with_both(runs: Runs) -> None:
    rows = runs("never").rows("loss")
    assert len(rows) == 24
    for row in rows:
        each = json.loads(dict(row["attributes"])["local"])
        assert len(each) == 2
        assert row["value"] == pytest.approx(sum(each) / 2)


def test_a_shuffle_buffer_smaller_than_the_data_is_advice(runs: Runs) -> None:
    (finding,) = runs("little_buffer").found("data.shuffle")
    assert finding["evidence"]["shuffle_buffer"] == 8
    assert 49 <= finding["evidence"]["elements"] <= 64  # four batches of 16, the last perhaps short
    assert runs("little_buffer").text["symptom"] == "healthy"


def test_a_device_without_a_replica_is_told(runs: Runs) -> None:
    (finding,) = runs("one_device").found("config.strategy")
    assert "divided its CPU into 2 devices" in finding["title"]
    assert runs("sound").found("config.strategy") == []


# 16 bits


def test_gradients_that_are_clipped_to_the_largest_number_are_counted_apart(runs: Runs) -> None:
    verdict = runs("saturated")
    (finding,) = verdict.found("numeric.saturated")
    assert finding["ranks"] == [0]
    assert finding["evidence"]["steps"]["0"] > 2
    assert verdict.found("numeric.nonfinite") == []


def test_a_scale_that_finds_its_place_is_no_finding(runs: Runs) -> None:
    verdict = runs("overflows")
    assert 1.0 < verdict.events("loss_scale")[-1] < 2.0**14
    assert verdict.events("gradient_nonfinite")
    assert {one for one in verdict.ids if one.startswith("numeric.")} == set()


def test_a_scale_that_only_falls_is_a_collapse(runs: Runs) -> None:
    (finding,) = runs("collapse").found("numeric.loss_scale")
    assert (finding["severity"], finding["certainty"]) == ("critical", "proven")
    assert finding["evidence"]["drops"] >= 10
    assert finding["evidence"]["gradients_not_finite_on"] == [0]


# Input


def test_input_is_judged_by_the_wait_that_was_measured(runs: Runs) -> None:
    """Both have ``prefetch(1)``."""
    assert len(runs("slow_input").found("data.bound")) == 1
    assert runs("quick_input").found("data.bound") == []
    assert runs("sound").ids == set()


# What it ran with


def test_the_report_says_with_what_it_trained(runs: Runs) -> None:
    setup: dict[str, Any] = runs("reduced_means").text["setup"]
    assert (setup["strategy"], setup["replicas"]) == ("MirroredStrategy", 2)
    assert setup["devices"] == {"CPU": 2}
