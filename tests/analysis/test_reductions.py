"""Values of which each replica has its own: whether they are put together, and how."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.telling import found, silent, verdict, workers
from tracekit.findings import Certainty, Severity
from tracekit.testing import RunBuilder

ID = "config.reduction"


def reduced(how: str, value: str = "loss", replicas: int = 2, **more: Any) -> RunBuilder:
    run = workers()
    told = {"value": value, "per_replica": True, "reduced": how, "replicas": replicas, **more}
    for rank in range(2):
        run.fact("reduction", told, rank)
    return run


def test_a_mean_of_replicas_is_no_finding() -> None:
    assert silent(reduced("MEAN"))


def test_one_replica_has_nothing_to_reduce() -> None:
    assert silent(reduced("none", replicas=1))
    assert silent(reduced("SUM", replicas=1))


def test_a_value_that_nobody_was_seen_to_reduce_is_information_that_cannot_tell() -> None:
    run = reduced("none")
    (finding,) = found(run, ID)
    assert (finding.severity, finding.certainty) == (Severity.INFO, Certainty.CANNOT_TELL)
    assert verdict(run).symptom == "healthy"
    assert 'reduce("MEAN", loss' in finding.advice[0]


def test_a_value_that_was_reduced_later_is_no_finding() -> None:
    run = reduced("none")
    for rank in range(2):
        told = {"value": "loss", "per_replica": True, "reduced": "MEAN", "replicas": 2}
        run.fact("reduction", told, rank)
    assert silent(run)


def test_a_sum_alone_is_advice_only() -> None:
    run = reduced("SUM")
    (finding,) = found(run, ID)
    assert (finding.severity, finding.certainty) == (Severity.INFO, Certainty.CANNOT_TELL)
    assert "with one worker" in finding.advice[0]


def with_events(run: RunBuilder, **values: float) -> RunBuilder:
    for name, value in values.items():
        for step in range(20):
            run.event(0, name, value * (1 + 0.1 * step), step=step)
    return run


def test_a_sum_that_is_n_times_another_record_of_the_same_value_is_likely() -> None:
    run = with_events(reduced("SUM"), loss=4.0, train_loss=2.0)
    (finding,) = found(run, ID)
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.LIKELY)
    assert finding.evidence["same_value"] == "train_loss"
    assert finding.evidence["ratio"] == 2.0
    assert "2 times too large" in finding.title


def test_a_sum_that_equals_another_record_of_the_same_value_stays_advice() -> None:
    (finding,) = found(with_events(reduced("SUM"), loss=2.0, train_loss=2.0), ID)
    assert finding.severity is Severity.INFO


def test_an_accuracy_above_one_is_proof() -> None:
    run = with_events(reduced("SUM", "accuracy"), accuracy=0.6)
    (finding,) = found(run, ID)
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.PROVEN)
    assert finding.evidence["largest"] == pytest.approx(1.74)


def test_what_the_graph_shows_decides() -> None:
    (finding,) = found(reduced("SUM", "value", mean=True), ID)
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.LIKELY)
    assert silent(reduced("SUM", "truediv", mean=False))


def test_values_that_libraries_reduce_by_themselves_are_no_finding() -> None:
    assert silent(reduced("SUM", "value", mean=None))
    assert silent(reduced("none", ""))


def test_the_name_of_a_function_says_nothing_of_what_it_returns() -> None:
    (finding,) = found(reduced("SUM", "accumulate_step()"), ID)
    assert (finding.severity, finding.certainty) == (Severity.INFO, Certainty.CANNOT_TELL)


def test_a_summed_mean_is_likely_by_its_name() -> None:
    (finding,) = found(reduced("SUM", "mean_loss"), ID)
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.LIKELY)


@pytest.mark.parametrize(
    "error",
    [
        "'PerReplica' object has no attribute 'numpy'",
        "float() argument must be a string or a real number, not 'PerReplica'",
        "It looks like you are using a PerReplica object while not inside a replica context",
        "unsupported operand type(s) for +: 'PerReplica' and 'int'",
        "unsupported format string passed to PerReplica.__format__",
    ],
)
def test_every_error_of_values_used_as_one_is_recognised(error: str) -> None:
    run = workers()
    state = {"state": "exception", "type": "TypeError", "message": error, "frame": "train.py:7"}
    run.fact("end_state", state, 1, time_ns=run.now[1])
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.certainty) == ((1,), Certainty.PROVEN)
    assert "experimental_local_results" in finding.advice[0]


def test_another_error_is_not() -> None:
    run = workers()
    state = {"state": "exception", "type": "TypeError", "message": "unsupported operand"}
    run.fact("end_state", state, 1, time_ns=run.now[1])
    assert found(run, ID) == []
