"""Real trainings of several workers: who is slow, who is gone, and that nothing changes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.tensorflow.trainings import Training, trained, training
from tests.adapters.xplane import by_hand, runs

pytestmark = pytest.mark.slow

STEPS = 48
WORKERS = {"fit": 2, "loop": 3}
both = pytest.mark.parametrize("mode", ["fit", "loop"])


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Training]:
    """A healthy training of each kind, each after the same one without tracekit."""
    folder = tmp_path_factory.mktemp("healthy")
    return {mode: trained(folder / mode, mode, n, bits=True) for mode, n in WORKERS.items()}


def ids(found: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in found["findings"]}


@both
def test_weights_are_bit_equal_with_and_without(healthy: dict[str, Training], mode: str) -> None:
    told = healthy[mode].told()
    policies = ["mixed_float16", "float32"] if mode == "fit" else ["float32"]
    assert [one["equal"] for one in told] == [dict.fromkeys(policies, True)] * WORKERS[mode]
    assert len({tuple(one["weights"]) for one in told}) == 1


@both
def test_workers_are_one_run_and_make_each_call_together(
    healthy: dict[str, Training], mode: str
) -> None:
    rows = runs.spans(healthy[mode].run).to_pylist()
    ranks = range(WORKERS[mode])
    calls: dict[int, Counter[tuple[int, str, int]]] = {rank: Counter() for rank in ranks}
    for row in rows:
        if row["kind"] == "comm" and row["step"] is not None:
            calls[row["rank"]][row["step"], row["collective_group"], row["collective_seq"]] += 1
    assert all(of_rank == calls[0] for of_rank in calls.values())
    assert set(calls[0].values()) == {1}
    steps = {row["step"] for row in rows if row["kind"] == "step"}
    assert len(steps) >= STEPS - 1  # in a loop the first call, in which TensorFlow traces, is none
    traced = steps - {step for step, _, _ in calls[0]}
    assert len(traced) <= 4, "those in which TensorFlow traced, twice in each training"


@both
def test_a_healthy_training_accuses_nobody(healthy: dict[str, Training], mode: str) -> None:
    found = healthy[mode].verdict()
    assert found["run"]["ranks"] == list(range(WORKERS[mode]))
    assert found["run"]["missing_ranks"] == []
    assert found["stragglers"] == []
    # Three workers on two cores wait a lot for each other, and that is said.
    assert ids(found) <= {"comm.share"}


@pytest.mark.parametrize(
    ("mode", "workers", "slow", "whose", "cause"),
    [
        ("fit", 2, "input", 1, "data"),
        ("fit", 3, "compute", 2, "forward"),
        ("loop", 3, "input", 1, "data"),
        ("loop", 2, "compute", 0, "forward"),
    ],
)
def test_who_is_slow_is_the_only_straggler_with_its_cause(
    tmp_path: Path, mode: str, workers: int, slow: str, whose: int, cause: str
) -> None:
    found = trained(tmp_path / "job", mode, workers, slow=slow, whose=whose).verdict()
    assert [(one["rank"], one["cause"]) for one in found["stragglers"]] == [(whose, cause)]
    accused = [one["ranks"] for one in found["findings"] if one["id"].startswith("straggler.")]
    assert accused == [[whose]]


def test_the_share_of_communication_is_that_summed_from_the_same_profiles_by_hand(
    tmp_path: Path,
) -> None:
    made = trained(tmp_path / "job", "loop", 2, windows=[16, 8], width=1024)
    shares = made.verdict()["shares"]
    rows = [row for row in runs.spans(made.run).to_pylist() if row["kind"] == "step"]
    comm = whole = 0.0
    for rank, file in profiles(made):
        told = json.loads((file.parents[3] / "window.json").read_bytes())
        numbers = [number for number, _, _ in told["steps"]]
        steps = [
            (row["step"], row["start_ns"], row["start_ns"] + row["duration_ns"])
            for row in rows
            if row["rank"] == rank and row["step"] in numbers
        ]
        weight = sum(end - start for _, start, end in steps)
        comm += by_hand.shares(file.read_bytes(), steps)["comm"] * weight
        whole += weight
    assert shares["exposed_communication"] == pytest.approx(comm / whole, abs=0.05)


def profiles(made: Training) -> Iterator[tuple[int, Path]]:
    """The profiles of each rank's windows."""
    for file in made.run.glob("**/*.xplane.pb"):
        named = re.search(r"/rank-(\d+)", str(file))
        assert named is not None
        yield int(named[1]), file


def test_a_worker_that_was_killed_is_named_and_who_failed_because_of_it(tmp_path: Path) -> None:
    with training(tmp_path / "job", "fit", 3, end="kill", whose=1) as made:
        made.wait()
        (crash,) = [one for one in made.verdict()["findings"] if one["id"].startswith("crash.")]
    assert (crash["id"], crash["ranks"]) == ("crash.vanished", [1])
    assert crash["evidence"]["victims"] == crash["evidence"]["waiting_ranks"] == [0, 2]


def test_a_worker_that_was_stopped_is_named_and_in_what_the_others_wait(tmp_path: Path) -> None:
    with training(tmp_path / "job", "loop", 3, end="stop", whose=1) as made:
        made.processes[0].wait()  # TensorFlow gives up on it after ten seconds without a heartbeat
        made.processes[2].wait()
        hang = made.until("hang.stopped", "crash.error", "crash.vanished")
    assert (hang["id"], hang["ranks"], hang["evidence"]["waiting_ranks"]) == (
        "hang.stopped", [1], [0, 2],
    )  # fmt: skip
    assert hang["evidence"]["collective"]["op"] == "train"


def test_a_worker_that_never_joins_is_named_and_in_what_the_others_wait(tmp_path: Path) -> None:
    with training(tmp_path / "job", "loop", 2, end="absent", whose=1) as made:
        missing = made.until("hang.missing_rank")
    assert (missing["ranks"], missing["evidence"]["waiting_ranks"]) == ([1], [0])
    assert missing["evidence"]["collective"]["op"] == "barrier"
