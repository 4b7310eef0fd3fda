"""The Lightning callback, with the real library on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning.pytorch")
    import pytorch_lightning

    from tests.adapters import lightning_job
    from tracekit.adapters.lightning import TracekitCallback

import torch

from tests.adapters.lightning_job import Layers, Manual, Net, fit, steps_of
from tests.adapters.torch.tape import Tape
from tracekit.adapters._patch import patched
from tracekit.dataset import open_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


def phases(tape: Tape, step: int | None) -> list[str]:
    kinds = ("data", "forward", "backward", "optimizer", "eval", "checkpoint")
    return [span.name for span in tape.spans() if span.step == step and span.kind in kinds]


def test_a_step_has_its_phases_one_after_the_other(tape: Tape) -> None:
    fit(Net(), batches=3, callbacks=TracekitCallback())
    assert phases(tape, None) == ["data_wait", "data_wait"]  # the loader starts, the first batch
    assert phases(tape, 0) == ["forward", "backward", "optimizer_step"]
    assert phases(tape, 1) == ["data_wait", "forward", "backward", "optimizer_step"]
    by_id = {span.id: span for span in tape.spans()}
    for span in tape.spans():
        if span.kind in ("forward", "backward", "optimizer"):
            assert by_id[span.parent].name == "train_step"
    assert tape.open_spans() == []
    assert "batch_size" in {fact["name"] for fact in tape.facts}


def test_steps_go_on_over_epochs(tape: Tape) -> None:
    fit(Net(), batches=2, max_epochs=2, callbacks=[TracekitCallback()])
    assert steps_of(tape, "optimizer_step") == [0, 1, 2, 3]
    assert phases(tape, 2)[-4:] == ["data_wait", "forward", "backward", "optimizer_step"]


def test_accumulated_batches_are_micro_steps(tape: Tape) -> None:
    fit(Net(), callbacks=[TracekitCallback()], accumulate_grad_batches=2)
    found = [(s.step, s.micro_step) for s in tape.spans() if s.name == "forward"]
    assert found[1:] == [(0, 1), (1, 0), (1, 1)]  # that it accumulates shows at the second
    assert steps_of(tape, "optimizer_step") == [0, 1]


def test_validation_is_evaluation_from_its_loader_on(tape: Tape) -> None:
    fit(Net(), val=True, num_sanity_val_steps=1, callbacks=[TracekitCallback()])
    validations = [span for span in tape.spans() if span.name == "validation"]
    assert [(span.kind, span.step) for span in validations] == [("eval", None), ("eval", 4)]
    inside = [
        span.name
        for span in tape.spans()
        for outer in validations
        if outer.start < span.start < outer.end and span.kind in ("data", "forward")
    ]
    assert inside == []


def test_checkpoints_are_spans(tape: Tape, tmp_path: Path) -> None:
    place: dict[str, Any] = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    fit(Net(), callbacks=[TracekitCallback()], **place)
    saved = [span.name for span in tape.spans() if span.kind == "checkpoint"]
    assert saved == ["save_checkpoint"]
    assert list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("model", [Net, Manual])
def test_parameters_are_the_same_to_the_bit(tape: Tape, model: Any) -> None:
    found = fit(model(), callbacks=[TracekitCallback()], gradient_clip_val=None)
    expected = fit(model())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert steps_of(tape, "backward")


def test_a_batch_with_several_updates_is_one_step(tape: Tape) -> None:
    fit(Manual(), batches=2, callbacks=[TracekitCallback()])
    assert steps_of(tape, "optimizer_step") == [0, 0, 1, 1]
    assert steps_of(tape, "backward") == [0, 0, 1, 1]


def test_an_exception_is_the_users_and_ends_the_step(tape: Tape) -> None:
    model = Net()
    model.fails_at = 2
    with pytest.raises(KeyError, match="mine"):
        fit(model, callbacks=[TracekitCallback()])
    assert patched() == []
    assert tape.open_spans() == []
    steps = [(span.step, span.error) for span in tape.spans() if span.kind == "step"]
    assert steps == [(0, False), (1, False), (2, True)]


def test_a_callback_serves_one_fit_after_the_other(tape: Tape) -> None:
    callback = TracekitCallback()
    for _ in range(2):
        fit(Net(), batches=2, callbacks=[callback])
    numbers = [step for step in steps_of(tape, "forward") if step is not None]
    assert len(numbers) == 4
    assert sorted(set(numbers)) == numbers


def test_the_other_package_works_as_well(tape: Tape) -> None:
    class Other(Layers, pytorch_lightning.LightningModule):  # type: ignore[misc]
        pass

    trainer = pytorch_lightning.Trainer
    fit(Other(), batches=2, val=True, trainer=trainer, callbacks=TracekitCallback())
    assert phases(tape, 0) == ["forward", "backward", "optimizer_step"]
    assert steps_of(tape, "validation") == [2]


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)


def test_two_ranks_under_torchrun() -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = python(*launch, str(lightning_job.__file__), "check")
    assert done.returncode == 0, done.stderr[-4000:]


def test_two_ranks_that_lightning_launches_are_one_run(tmp_path: Path) -> None:
    done = python(str(lightning_job.__file__), TRACEKIT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    [folder] = tmp_path.iterdir()
    with open_run(folder) as run:
        assert run.ranks == (0, 1)
        spans = run.table("spans").to_pylist()
    for rank in range(2):
        mine = [span for span in spans if span["rank"] == rank]
        assert [s["step"] for s in mine if s["name"] == "optimizer_step"] == [0, 1, 2, 3]
        by_id = {span["span_id"]: span["name"] for span in mine}
        reduced = [s for s in mine if s["collective_op"] == "all_reduce"]
        inside = [s["step"] for s in reduced if by_id.get(s["parent_id"]) == "backward"]
        assert inside == [0, 1, 2, 3]


def test_without_lightning_one_line_says_what_to_install() -> None:
    absent = "import sys; sys.modules.update(lightning=None, pytorch_lightning=None)"
    done = python("-c", f"{absent}; import tracekit.adapters.lightning")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "lightning is not installed: pip install 'tracekit-blackbox[lightning]'" in last
