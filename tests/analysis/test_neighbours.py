"""A GPU that ran out of memory because other ranks hold some of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.analysis.post_mortem.neighbours import neighbours_in
from tracekit.testing import RunBuilder

TERMINATED = {"state": "signal", "signal": 15, "source": "launcher"}


def error(held: Sequence[tuple[int, str]]) -> str:
    """What PyTorch raises, with the processes that the driver knows on the GPU."""
    others = " ".join(f"Process {pid} has {size} memory in use." for pid, size in held)
    return (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of"
        f" which 640.00 MiB is free. {others} Including non-PyTorch memory, this process has 18.75"
        " GiB memory in use. Of the allocated memory 17.50 GiB is allocated by PyTorch"
    )


def failed(held: Sequence[tuple[int, str]], world_size: int = 8) -> Analysis:
    run = RunBuilder(world_size=world_size, jitter=0.05)
    run.steps(20)
    told = {"state": "exception", "type": "OutOfMemoryError", "message": error(held)}
    run.die(0, end_state=told, others=TERMINATED)
    with run.engine() as engine:
        return analyze(engine)


def test_contexts_of_other_ranks_are_told_before_a_smaller_batch_is_advised() -> None:
    """RunBuilder's rank 3 is process 1003."""
    analysis = failed([(1000 + rank, "512.00 MiB") for rank in range(1, 8)])
    finding = analysis.findings[0]
    assert (finding.id, finding.ranks, analysis.symptom) == ("crash.oom", (0,), "oom")
    assert "other processes (7, ranks 1-7 among them) held 3,584 MiB" in finding.title
    assert finding.evidence["on_its_gpu"]["ranks"] == [1, 2, 3, 4, 5, 6, 7]
    assert "set_device" in finding.advice[0]
    assert "map_location" in finding.advice[0]


def test_processes_that_nobody_knows_are_counted_and_not_named() -> None:
    finding = failed([(77, "1.50 GiB"), (78, "512.00 MiB")]).findings[0]
    assert "other processes (2) held 2,048 MiB" in finding.title
    assert finding.evidence["on_its_gpu"]["ranks"] == []


@pytest.mark.parametrize("held", [[], [(1000, "18.75 GiB")]])
def test_a_rank_that_is_alone_on_its_gpu_is_short_by_itself(held: list[tuple[int, str]]) -> None:
    finding = failed(held).findings[0]
    assert finding.id == "crash.oom"
    assert "on_its_gpu" not in finding.evidence
    assert "set_device" not in " ".join(finding.advice)


def test_in_a_container_the_rank_itself_is_not_taken_for_another_process() -> None:
    text = error([(31_337, "18.75 GiB")])
    assert neighbours_in(text) is not None
    assert (
        neighbours_in(text.replace(" Including non-PyTorch memory, this process has", "")) is None
    )


@pytest.mark.parametrize(
    "text", ["", "CUDA out of memory", "Process 12 has much", "Process 1 has 9 TiB memory in use"]
)
def test_other_texts_list_nobody(text: str) -> None:
    assert neighbours_in(text) is None
