"""The Hugging Face callback and Accelerate's objects, with the real libraries on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    from tests.adapters import huggingface_job

import torch

from tests.adapters.huggingface_job import Net, accelerated, steps_of, train
from tests.adapters.torch.tape import Tape
from tracekit.adapters._patch import patched
from tracekit.dataset import open_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


def phases(tape: Tape, step: int | None) -> list[str]:
    kinds = ("data", "forward", "backward", "optimizer", "eval", "checkpoint")
    return [span.name for span in tape.spans() if span.step == step and span.kind in kinds]


def test_a_step_has_its_phases_one_after_the_other(tape: Tape, tmp_path: Path) -> None:
    train(tmp_path, batches=3)
    assert phases(tape, None) == ["data_wait", "data_wait"]  # the loader starts, the first batch
    assert phases(tape, 0) == ["forward", "backward", "optimizer_step"]
    assert phases(tape, 1) == ["data_wait", "forward", "backward", "optimizer_step"]
    assert steps_of(tape, "optimizer_step") == [0, 1, 2]
    assert tape.open_spans() == []
    [optimizer] = tape.fact("optimizer")
    assert optimizer["class"] == "AdamW"


def test_accumulated_batches_are_micro_steps(tape: Tape, tmp_path: Path) -> None:
    train(tmp_path, gradient_accumulation_steps=2)
    found = [(s.step, s.micro_step) for s in tape.spans() if s.name == "backward"]
    assert found[1:] == [(0, 1), (1, 0), (1, 1)]  # that it accumulates shows at the second
    assert steps_of(tape, "optimizer_step") == [0, 1]
    assert phases(tape, 1).count("data_wait") == 2


def test_evaluation_is_evaluation(tape: Tape, tmp_path: Path) -> None:
    train(tmp_path, eval_strategy="steps", eval_steps=2)
    evaluations = [span for span in tape.spans() if span.name == "evaluate"]
    assert [(span.kind, span.step) for span in evaluations] == [("eval", 2), ("eval", 4)]
    inside = {
        span.kind
        for span in tape.spans()
        for outer in evaluations
        if outer.start < span.start < outer.end
    }
    assert inside <= {"eval", "gc"}


def test_checkpoints_are_spans_and_training_resumes(tape: Tape, tmp_path: Path) -> None:
    train(tmp_path, save_strategy="steps", save_steps=2)
    saved = [(span.name, span.step) for span in tape.spans() if span.kind == "checkpoint"]
    assert saved == [("save_checkpoint", 2), ("save_checkpoint", 4)]
    before = len(tape.spans())
    train(tmp_path, resume=str(tmp_path / "checkpoint-2"))
    resumed = [span.name for span in tape.spans()[before:] if span.kind in ("data", "optimizer")]
    assert resumed.count("optimizer_step") == 2
    assert resumed.count("data_wait") == 3  # the loader starts, and two batches


def test_what_the_trainer_logs_are_events(tape: Tape, tmp_path: Path) -> None:
    train(tmp_path, batches=2)
    logged = [event for event in tape.events() if event.attributes.get("source") == "trainer"]
    names = [event.name for event in logged]
    assert names[:3] == ["loss", "grad_norm", "lr"]
    assert names.count("loss") == 2
    assert all(isinstance(event.value, float) for event in logged)


def test_parameters_are_the_same_to_the_bit(tape: Tape, tmp_path: Path) -> None:
    found = train(tmp_path)
    expected = train(tmp_path, traced=False)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(steps_of(tape, "backward")) == 4


def test_an_exception_is_the_users_and_ends_the_step(tape: Tape, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        train(tmp_path, Net(fails_at=2))
    assert patched() == []
    assert tape.open_spans() == []
    steps = [(span.step, span.error) for span in tape.spans() if span.kind == "step"]
    assert steps == [(0, False), (1, False), (2, True)]


def test_after_an_exception_elsewhere_the_next_training_is_traced(
    tape: Tape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(data: object, index: int) -> None:
        raise KeyError("a batch")

    monkeypatch.setattr(huggingface_job.Data, "__getitem__", broken)
    with pytest.raises(KeyError, match="a batch"):
        train(tmp_path)
    monkeypatch.undo()
    train(tmp_path)
    assert steps_of(tape, "optimizer_step") == [0, 1, 2, 3]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_around_accelerate_needs_trace_alone(tape: Tape, accumulate: int) -> None:
    expected = accelerated(accumulate, traced=False)
    found = accelerated(accumulate)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    updates = 4 // accumulate
    assert steps_of(tape, "optimizer_step") == list(range(updates))
    assert len(steps_of(tape, "forward")) == 4
    waits = steps_of(tape, "data_wait")
    assert len(waits) == 6  # the loader starts, four batches, the end
    assert steps_of(tape, "clip_grad_norm") == list(range(updates))
    last = [(s.step, s.micro_step) for s in tape.spans() if s.name == "backward"][-1]
    assert last == (updates - 1, accumulate - 1 if accumulate > 1 else None)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)


LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_ranks_under_torchrun() -> None:
    done = python(*LAUNCH, str(huggingface_job.__file__), "check")
    assert done.returncode == 0, done.stderr[-4000:]


def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    done = python(*LAUNCH, str(huggingface_job.__file__), TRACEKIT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    [folder] = tmp_path.iterdir()
    with open_run(folder) as run:
        assert run.ranks == (0, 1)
        spans = run.table("spans").to_pylist()
    for rank in range(2):
        names = [span["name"] for span in spans if span["rank"] == rank]
        assert names.count("optimizer_step") == 4


def test_without_transformers_one_line_says_what_to_install() -> None:
    absent = "import sys; sys.modules.update(transformers=None)"
    done = python("-c", f"{absent}; import tracekit.adapters.huggingface")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "transformers is not installed: pip install 'tracekit-blackbox[huggingface]'" in last
