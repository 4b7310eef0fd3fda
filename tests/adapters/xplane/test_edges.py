"""A collective that a profile lacks where it begins or ends says nothing of the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.adapters.xplane import runs, spaces
from tests.adapters.xplane.spaces import MS, Event
from tracekit.analysis import Options
from tracekit.findings.result import Analysis

STEPS = 24


def profile(rank: int, size: int, lacks: Sequence[tuple[int, int]]) -> bytes:
    """A worker that reduces its gradients and then its loss in each step of ten milliseconds.

    ``lacks`` are the calls that were not noted: a step, and 0 for the gradients or 1 for the loss.
    """
    python, ops, comm = list[Event](), list[Event](), [spaces.group(size)]
    for place in range(STEPS):
        at = place * 10 * MS
        python.append(spaces.step(place, at, 10 * MS))
        ops.append(Event("dense/MatMul:MatMul", at, 2 * MS))
        ops.append(Event("gradient_tape/dense/MatMul:MatMul", at + 2 * MS, 4 * MS))
        calls = [spaces.reduce(at + 6 * MS, MS, 100), spaces.reduce(at + 8 * MS, MS, 101)]
        comm += [call for n, call in enumerate(calls) if (place, n) not in lacks]
        ops.append(Event("SGD/update_0/mul:Mul", at + 7 * MS, MS))
    told = {"device": f"/job:worker/replica:0/task:{rank}/device:CPU:0"}
    python.append(Event("RemoteCallOp", 0, 10, told))
    lines = {"python": python, "tf_Compute/1": ops, "collective_ops/1": comm}
    return spaces.space(spaces.plane("/host:CPU", lines))


def judged(folder: Path, size: int, lacks: Sequence[tuple[int, int]]) -> Analysis:
    """What is said of profiles of which the one of worker 1 lacks these calls."""
    for rank in range(size):
        path = folder / "logs" / f"{rank}.xplane.pb"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(profile(rank, size, lacks if rank == 1 else ()))
    runs.imported([folder / "logs"], folder / "run")
    return runs.verdict(folder / "run", Options())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "lacks",
    [[(STEPS - 1, 1)], [(STEPS - 1, 0), (STEPS - 1, 1)], [(0, 0)], [(0, 0), (STEPS - 1, 1)]],
)
def test_a_call_that_was_cut_off_is_no_finding(
    tmp_path: Path, size: int, lacks: list[tuple[int, int]]
) -> None:
    result = judged(tmp_path, size, lacks)
    assert result.findings == ()
    assert result.stragglers == ()
    rows = runs.spans(tmp_path / "run")
    calls = rows.filter(pc.equal(rows["name"], "all_reduce")).to_pylist()
    assert len(calls) == 2 * size * STEPS - len(lacks), "its time is kept"
    unnumbered = [call for call in calls if call["collective_seq"] is None]
    assert len(unnumbered) == len(lacks) * (size - 1)


def test_a_call_that_is_lacking_in_between_is_said(tmp_path: Path) -> None:
    result = judged(tmp_path, 2, [(STEPS // 2, 1)])
    assert [finding.id for finding in result.findings] == ["coverage.partial"]
