"""Where values stopped being finite first, and what limits of number types were met."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.analysis.telling import found, how, silent, verdict
from tracekit.findings import Certainty, Severity
from tracekit.testing import RunBuilder

NAN, INF = float("nan"), float("inf")
Losses = Mapping[tuple[int, int], float]
"""Losses that differ from the usual, by step and rank."""


def trained(steps: int = 60, odd: Losses | None = None, world_size: int = 4) -> RunBuilder:
    """A healthy run whose ranks each record their own loss."""
    run = RunBuilder(world_size=world_size, jitter=0.05)
    for step in range(steps):
        run.step()
        for rank in range(world_size):
            loss = (odd or {}).get((step, rank), 2.0 / (step + 1) + 0.01 * rank)
            run.event(rank, "loss", loss, step=step)
    return run


def poisoned(steps: int = 60) -> dict[tuple[int, int], float]:
    """Rank 2 has it in step 40, all ranks from step 41 on."""
    later = {(step, rank): NAN for step in range(41, steps) for rank in range(4)}
    return {(40, 2): NAN, **later}


def test_finite_losses_are_no_finding() -> None:
    assert silent(trained())


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_the_rank_that_had_it_first_is_named_and_the_others_are_not(value: float) -> None:
    run = trained(odd={**poisoned(), (40, 2): value})
    analysis = verdict(run)
    (finding,) = [one for one in analysis.findings if one.id == "numeric.nonfinite"]
    assert (finding.ranks, finding.steps) == ((2,), (40, 59))
    assert (finding.severity, finding.certainty) == (Severity.CRITICAL, Certainty.PROVEN)
    assert "rank 2 had a loss that is not finite first, in step 40" in finding.title
    assert "ranks 0-1, 3 had it after that" in finding.title
    assert "gpu" not in finding.title.lower()
    assert finding.evidence["values"]["0"] != "nan"
    assert analysis.symptom == "abnormal"


def test_a_rank_that_recorded_nothing_in_that_step_may_have_been_first() -> None:
    run = trained(odd=poisoned())
    run.events = [one for one in run.events if (one["step"], one["rank"]) != (40, 0)]
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.ranks, finding.certainty) == ((2,), Certainty.LIKELY)


def test_of_ranks_that_all_have_it_at_once_none_is_named() -> None:
    run = trained(odd={(step, rank): NAN for step in range(41, 60) for rank in range(4)})
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.ranks, finding.certainty) == ((0, 1, 2, 3), Certainty.CANNOT_TELL)
    assert finding.evidence["first_ranks"] == []
    assert "no rank was first" in finding.title


def test_values_from_after_the_reduction_name_nobody() -> None:
    run = RunBuilder(jitter=0.05)
    for step in range(60):
        run.step()
        for rank in range(4):
            run.event(rank, "grad_norm", NAN if step > 40 else 1.0, step=step)
    (finding,) = found(run, "numeric.nonfinite")
    assert finding.certainty is Certainty.CANNOT_TELL
    assert "the rank it began on is unknown" in finding.title


def test_the_loss_of_a_rank_counts_and_not_what_was_made_of_all() -> None:
    """Every rank records the reduced loss, with what its own replicas had."""
    run = RunBuilder(world_size=2, jitter=0.05)
    for rank in range(2):
        run.fact("strategy", how(2, rank), rank)
    for step in range(30):
        run.step()
        for rank in range(2):
            poisons = step == 20 and rank == 1
            local = [NAN if poisons or step > 20 else 1.0]
            attributes = {"local": json.dumps(local)}
            value = NAN if step >= 20 else 1.0
            run.event(rank, "loss", value, step=step, attributes=attributes)
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.ranks, finding.certainty) == ((1,), Certainty.PROVEN)


def test_a_loss_that_a_strategy_made_of_all_names_nobody_and_gradients_do() -> None:
    run = RunBuilder(world_size=2, jitter=0.05)
    for rank in range(2):
        run.fact("strategy", how(2, rank), rank)
    for step in range(30):
        run.step()
        for rank in range(2):
            run.event(rank, "loss", NAN if step >= 20 else 1.0, step=step)
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.ranks, finding.certainty) == ((0, 1), Certainty.CANNOT_TELL)
    assert "the rank it began on is unknown" in finding.title
    run.event(1, "gradient_nonfinite", 5.0, step=20)
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.ranks, finding.certainty) == ((1,), Certainty.LIKELY)


def test_a_single_bad_loss_that_was_skipped_is_a_warning() -> None:
    run = trained(odd={(40, 2): NAN})
    run.event(1, "optimizer_skipped", step=40)
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.severity, finding.ranks) == (Severity.WARNING, (2,))
    assert finding.evidence["skipped_by"] == [1]


def with_gradients(counts: Losses, world_size: int = 4) -> RunBuilder:
    run = trained(world_size=world_size)
    for (step, rank), count in counts.items():
        run.event(rank, "gradient_nonfinite", count, step=step)
    return run


def test_gradients_name_the_rank_before_the_loss_shows_it() -> None:
    run = trained(odd={(step, rank): NAN for step in range(41, 60) for rank in range(4)})
    run.event(3, "gradient_nonfinite", 7.0, step=40)
    (finding,) = found(run, "numeric.nonfinite")
    assert (finding.ranks, finding.steps) == ((3,), (40, 59))
    assert "before they were reduced" in finding.title


def test_overflows_while_a_scale_is_looked_for_are_no_finding() -> None:
    run = with_gradients({(3, 1): 4.0, (30, 1): 2.0})
    for rank in range(4):
        for step, scale in ((0, 65536.0), (3, 32768.0), (30, 16384.0)):
            run.event(rank, "loss_scale", scale, step=step)
            run.events[-1]["time_ns"] += step
    assert silent(run)


def test_without_a_scale_the_same_overflows_are_a_warning() -> None:
    (finding,) = found(with_gradients({(3, 1): 4.0}), "numeric.nonfinite")
    assert (finding.severity, finding.ranks) == (Severity.WARNING, (1,))


# At the limit


def test_values_at_the_limit_are_counted_apart() -> None:
    run = trained()
    for step in range(10, 20):
        run.event(1, "gradient_saturated", 3.0, step=step)
    analysis = verdict(run)
    (finding,) = [one for one in analysis.findings if one.id.startswith("numeric.")]
    assert (finding.id, finding.ranks) == ("numeric.saturated", (1,))
    assert finding.evidence["values"] == {"1": 30.0}
    assert "nan_to_num" in finding.advice[0]


def test_a_count_of_none_is_no_finding() -> None:
    run = trained()
    for step in range(60):
        run.event(1, "gradient_saturated", 0.0, step=step)
        run.event(1, "gradient_nonfinite", 0.0, step=step)
    assert silent(run)


# The scale of the loss


def scaled(scales: Mapping[int, list[float]], name: str = "loss_scale") -> RunBuilder:
    """One change of the scale every second step, on each rank its own."""
    run = RunBuilder(world_size=len(scales), jitter=0.05)
    for step in range(60):
        run.step()
        for rank, told in scales.items():
            if step % 2 == 0 and step // 2 < len(told):
                run.event(rank, name, told[step // 2], step=step)
    return run


FALLING = [65536.0 / 2**i for i in range(18)]


@pytest.mark.parametrize("name", ["loss_scale", "grad_scale"])
def test_a_scale_that_only_falls_is_a_collapse(name: str) -> None:
    (finding,) = found(scaled({0: FALLING, 1: FALLING}, name), "numeric.loss_scale")
    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (0, 1))
    assert (finding.evidence["drops"], finding.evidence["to"]) == (17, 0.5)
    assert finding.steps == (0, 34)


def test_a_scale_that_falls_to_its_place_and_rises_again_is_no_finding() -> None:
    told = [*FALLING[:6], FALLING[4], FALLING[5], FALLING[4]]
    assert silent(scaled({0: told, 1: told}))


def test_a_scale_that_recovered_is_a_warning() -> None:
    (finding,) = found(scaled({0: [*FALLING, 1.0, 2.0]}), "numeric.loss_scale")
    assert finding.severity is Severity.WARNING


def test_the_first_step_in_which_scales_differ_is_told() -> None:
    (finding,) = found(scaled({0: FALLING[:6], 1: FALLING[:3]}), "numeric.loss_scale")
    assert finding.steps == (6, 6)
    assert finding.evidence["scales"] == {"0": 8192.0, "1": 16384.0}


def test_updates_that_are_left_out_too_often_are_told() -> None:
    run = trained()
    for step in range(0, 60, 5):
        for rank in range(4):
            run.event(rank, "optimizer_skipped", step=step)
    (finding,) = found(run, "numeric.loss_scale")
    assert "left out 12 of 60 updates" in finding.title
    run = trained()
    for rank in range(4):
        run.event(rank, "optimizer_skipped", step=7)
    assert silent(run)
