"""What ranks are fed: the same, as much as each other, in a new order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.analysis.telling import found, silent, verdict, workers
from tracekit.findings import Certainty, Severity
from tracekit.testing import RunBuilder


def dataset(**changes: Any) -> dict[str, Any]:
    return {
        "name": "train",
        "cardinality": 1000,
        "shuffle_buffer": 1000,
        "files": 8,
        "auto_shard": "AUTO",
        "batch": 32,
        **changes,
    }


def fed(**changes: Any) -> RunBuilder:
    run = workers()
    for rank in range(2):
        run.fact("tf_dataset", dataset(**changes), rank)
    return run


# As much as each other


@pytest.mark.parametrize("policy", ["AUTO", "FILE", "DATA", "OFF", None])
def test_enough_files_are_no_finding(policy: str | None) -> None:
    assert silent(fed(auto_shard=policy))


def test_fewer_files_than_workers_are_told_where_files_are_dealt_out() -> None:
    (finding,) = found(fed(auto_shard="FILE", files=1), "data.uneven")
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.PROVEN)
    assert "has 1 for 2 workers" in finding.title
    assert "AutoShardPolicy.DATA" in finding.advice[0]


@pytest.mark.parametrize("policy", ["AUTO", "DATA", "OFF", None])
def test_few_files_do_not_matter_otherwise(policy: str | None) -> None:
    assert silent(fed(auto_shard=policy, files=1))


def counted(*epochs: Sequence[int | None]) -> RunBuilder:
    run = RunBuilder(world_size=3, jitter=0.05)
    run.steps(30)
    for epoch, counts in enumerate(epochs):
        for rank, count in enumerate(counts):
            if count is not None:
                run.fact("tf_epoch", {"epoch": epoch, "elements": count}, rank)
    return run


def test_a_rank_with_fewer_batches_is_named_with_the_first_such_epoch() -> None:
    (finding,) = found(counted((10, 10, 10), (10, 10, 8), (10, 10, 8)), "data.uneven")
    assert (finding.ranks, finding.evidence["epoch"]) == ((2,), 1)
    assert finding.evidence["batches"] == {"0": 10, "1": 10, "2": 8}
    assert finding.certainty is Certainty.PROVEN


def test_epochs_of_several_data_sets_are_compared_each_with_its_own() -> None:
    run = counted((10, 10, 9), (10, 10, 10))
    for rank in range(3):
        run.fact("tf_epoch", {"epoch": 0, "elements": 4}, rank)
    (finding,) = found(run, "data.uneven")
    assert finding.evidence["batches"] == {"0": 10, "1": 10, "2": 9}


def test_equal_batches_and_epochs_that_were_not_told_are_no_finding() -> None:
    assert silent(counted((10, 10, 10), (10, None, 10)))


def test_epochs_that_ranks_began_in_different_steps_were_not_equally_long() -> None:
    """Ranks 0 and 1 take five steps an epoch, rank 2 three."""
    run = RunBuilder(world_size=3, jitter=0.05)
    run.steps(30)
    for rank, length in enumerate((5, 5, 3)):
        for epoch in (1, 2):
            run.event(rank, "epoch", float(epoch), step=epoch * length)
    (finding,) = found(run, "data.uneven")
    assert finding.ranks == (2,)
    assert "3, not 5" in finding.title


def sampled(samples: Sequence[int], size: int = 3, drop_last: bool = True) -> RunBuilder:
    run = RunBuilder(world_size=len(samples), jitter=0.05)
    run.steps(30)
    for rank, count in enumerate(samples):
        run.fact("sampler", {"class": "Own", "samples": count, "rank": rank}, rank)
        run.fact("loader", {"batch_size": size, "drop_last": drop_last}, rank)
    return run


def test_a_sampler_that_gives_the_last_rank_less_is_told_before_it_hurts() -> None:
    """100 samples for 7 ranks in batches of 3: rounding up and clamping leaves ten for the last."""
    (finding,) = found(sampled([15] * 6 + [10]), "data.uneven")
    assert (finding.ranks, finding.certainty) == ((6,), Certainty.LIKELY)
    assert finding.evidence["batches"] == {**{str(r): 5 for r in range(6)}, "6": 3}


def test_padded_and_even_samplers_are_no_finding() -> None:
    assert silent(sampled([15] * 7))
    assert silent(sampled([14] * 7))
    assert silent(sampled([14, 14, 13], drop_last=False))  # five batches each


# The same


def lost(same: bool, constant: bool = False, world_size: int = 4) -> RunBuilder:
    run = RunBuilder(world_size=world_size, jitter=0.05)
    for step in range(30):
        run.step()
        for rank in range(world_size):
            loss = 1.0 if constant else 3.0 / (step + 1) + (0.0 if same else 0.001 * rank)
            run.event(rank, "loss", loss, step=step)
    return run


def test_losses_that_are_always_the_same_come_from_the_same_samples() -> None:
    run = lost(same=True)
    for rank in range(4):
        run.fact("sampler", {"class": "RandomSampler", "samples": 100}, rank)
    (finding,) = found(run, "data.same_shard")
    assert (finding.ranks, finding.certainty) == ((0, 1, 2, 3), Certainty.LIKELY)
    assert finding.evidence["equal_losses"] == 30
    assert finding.evidence["samplers"] == ["RandomSampler"]
    assert verdict(run).symptom == "abnormal"
    for rank in range(4):
        run.fact("seeds", {"torch_state": "aa"}, rank)
    (finding,) = found(run, "data.same_shard")
    assert finding.certainty is Certainty.PROVEN


def test_losses_that_differ_do_not() -> None:
    assert silent(lost(same=False))
    nearly = lost(same=True)
    nearly.events[40]["value"] += 1e-6
    assert silent(nearly)


def test_a_loss_that_never_changes_tells_nothing() -> None:
    assert silent(lost(same=True, constant=True))


def test_ranks_that_share_one_model_read_the_same_on_purpose() -> None:
    run = lost(same=True, world_size=2)
    for rank in range(2):
        run.fact("role", {"dp": 0, "tp": rank}, rank)
    assert found(run, "data.same_shard") == []


def test_losses_that_a_strategy_put_together_are_the_same_for_that_reason() -> None:
    run = workers()
    for step in range(25):
        for rank in range(2):
            run.event(rank, "loss", 3.0 / (step + 1), step=step)
    assert silent(run)


# In a new order


def test_a_buffer_smaller_than_the_data_is_advice_and_no_more() -> None:
    run = fed(cardinality=500_000, shuffle_buffer=1000)
    (finding,) = found(run, "data.shuffle")
    assert (finding.severity, finding.certainty) == (Severity.INFO, Certainty.CANNOT_TELL)
    assert verdict(run).symptom == "healthy"


def test_elements_are_counted_where_they_are_shuffled() -> None:
    """100 batches of 32 made after a buffer of 1,000."""
    run = fed(
        cardinality=100, shuffle_buffer=1000, made_by=["_PrefetchDataset", "_BatchDataset",
        "_ShuffleDataset"],
    )  # fmt: skip
    (finding,) = found(run, "data.shuffle")
    assert finding.evidence["elements"] == 99 * 32 + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle_buffer": 1000},
        {"shuffle_buffer": 3000},
        {"shuffle_buffer": None},
        {"cardinality": None, "shuffle_buffer": 10},
        {
            "cardinality": 100,
            "shuffle_buffer": 100,
            "made_by": ["_ShuffleDataset", "_BatchDataset"],
        },
        {"cardinality": -2, "shuffle_buffer": 10},
        {"name": "validation", "shuffle_buffer": 10},
    ],
)
def test_a_full_buffer_none_or_one_of_an_evaluation_is_no_finding(changes: dict[str, Any]) -> None:
    assert silent(fed(**changes))


# Waiting is judged by measurement alone


def test_a_small_prefetch_is_no_finding_while_nobody_waits() -> None:
    run = fed(prefetch=1)
    for rank in range(2):
        run.fact("loader", {"batch_size": 8, "workers": 0, "prefetch": None}, rank)
    assert silent(run)


def test_a_measured_wait_is_a_finding_whatever_the_numbers_say() -> None:
    run = RunBuilder(world_size=2, jitter=0.05)
    for rank in range(2):
        run.fact("tf_dataset", dataset(prefetch=64), rank)
    run.steps(40, data=40.0)
    (finding,) = found(run, "data.bound")
    assert finding.severity is Severity.WARNING
