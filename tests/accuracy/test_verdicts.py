"""How often the verdict is right: faults of 10, 20 and 40 % of the step, in noise, and none.

The noise is rough: phases vary by a third, and every 30th phase takes twice as long, as on a
machine with fewer cores than ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.findings import Severity
from tracekit.testing import RunBuilder

USUAL = {"data": 2.0, "forward": 10.0, "backward": 20.0, "optimizer": 3.0}
STEP = 46.0
"""The healthy median step under this noise: the last rank of four is later than the mean one."""
STEPS = 70


@dataclass(frozen=True)
class Trial:
    """A run with a fault in one phase of one rank, in every step or every few."""

    phase: str | None
    rank: int = 0
    size: float = 0.4
    every: int = 1
    batchnorm: bool = True
    seed: int = 0

    def analysis(self) -> Analysis:
        noise = Random(f"{self}")
        run = RunBuilder(batchnorm=self.batchnorm, seed=self.seed)
        for step in range(STEPS):
            phases = {
                phase: {rank: ms * disturbed(noise) for rank in range(4)}
                for phase, ms in USUAL.items()
            }
            if self.phase is not None and step % self.every == 0:
                extra = self.size * STEP * self.every
                entry = phases.setdefault(self.phase, {})
                entry[self.rank] = entry.get(self.rank, 0.0) + extra
            run.step(**phases)
        with run.engine() as engine:
            return analyze(engine)

    def is_found(self) -> bool:
        found = [(one.rank, one.cause) for one in self.analysis().stragglers]
        return found == [(self.rank, self.phase)]


def disturbed(noise: Random) -> float:
    return noise.uniform(0.67, 1.33) * (2.0 if noise.random() < 1 / 30 else 1.0)


@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("phase", USUAL)
def test_a_fault_of_40_percent_is_named_with_its_phase(
    phase: str, rank: int, batchnorm: bool
) -> None:
    assert Trial(phase, rank, batchnorm=batchnorm).is_found()


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("phase", ["checkpoint", "gc"])
def test_a_fault_that_comes_every_fourth_step_is_named_too(phase: str, rank: int) -> None:
    assert Trial(phase, rank, every=4).is_found()


@pytest.mark.slow
def test_recall_by_the_size_of_the_fault(record_property: Callable[[str, object], None]) -> None:
    """The table of docs/numbers.md; printed with -s."""
    recall = {}
    for size in (0.1, 0.2, 0.4):
        trials = [
            Trial(phase, rank, size, batchnorm=batchnorm, seed=seed)
            for phase in USUAL
            for rank in (0, 2)
            for batchnorm in (False, True)
            for seed in range(3)
        ]
        recall[size] = sum(trial.is_found() for trial in trials) / len(trials)
        record_property(f"recall at {size:.0%}", recall[size])
        print(f"recall at {size:.0%} of the step: {recall[size]:.0%} of {len(trials)}")
    assert recall[0.4] == 1.0
    assert recall[0.2] >= 0.3


@pytest.mark.slow
def test_no_healthy_run_has_a_straggler_or_anything_critical() -> None:
    for seed in range(30):
        analysis = Trial(None, batchnorm=bool(seed % 2), seed=seed).analysis()
        assert analysis.stragglers == ()
        assert not [f for f in analysis.findings if f.severity is Severity.CRITICAL]
