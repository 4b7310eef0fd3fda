"""Whether replicas of one model began alike."""

from __future__ import annotations

from tests.analysis.telling import found, silent
from tracekit.findings import Certainty, Severity
from tracekit.testing import RunBuilder


def begun(*checksums: str, wrapped: bool = False) -> RunBuilder:
    run = RunBuilder(world_size=len(checksums), jitter=0.05)
    run.steps(25)
    for rank, checksum in enumerate(checksums):
        run.fact("initial_parameters", {"checksum": checksum, "parameters": 4}, rank)
        if wrapped:
            run.fact("ddp", {"buckets": 1}, rank)
    return run


def test_equal_parameters_are_no_finding() -> None:
    assert silent(begun("aa", "aa", "aa"))


def test_equal_seeds_alone_are_no_finding() -> None:
    run = begun("aa", "aa")
    for rank in range(2):
        run.fact("seeds", {"torch": 1, "torch_state": "bb"}, rank)
    assert silent(run)


def test_different_parameters_that_nothing_makes_equal_are_a_warning() -> None:
    (finding,) = found(begun("aa", "bb", "aa"), "config.seed")
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.CANNOT_TELL)
    assert finding.evidence["differ_from_most"] == [1]


def test_where_wrapping_makes_them_equal_it_is_information() -> None:
    (finding,) = found(begun("aa", "bb", wrapped=True), "config.seed")
    assert finding.severity is Severity.INFO


def test_ranks_that_share_one_model_have_different_parts_of_it() -> None:
    run = begun("aa", "bb")
    for rank in range(2):
        run.fact("role", {"dp": 0, "tp": rank}, rank)
    assert found(run, "config.seed") == []
