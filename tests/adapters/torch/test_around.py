"""All that happens around forward and backward at once: nothing changes by it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.adapters.torch.fake_device import FakeDevice
from tests.adapters.torch.jobs import launch
from tests.adapters.torch.small import network, phases
from tests.adapters.torch.tape import Tape, recording
from tracekit import recorder
from tracekit.adapters._patch import patched
from tracekit.adapters.torch import _loop, trace
from tracekit.adapters.torch._guard import failures

needs_scaler = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="no scaler for the CPU in this PyTorch"
)


# Steps without tracing, to compare with


@needs_scaler
def test_while_recording_pauses_steps_go_on_and_say_nothing(
    tape: Tape, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loop, "SELDOM_NS", 0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    handle = trace(model, optimizer)
    for step in range(4):
        monkeypatch.setattr(recorder.pause, "on", step in (1, 2))
        x = torch.ones(3, 4)
        x.to("meta")
        scaler.scale(model(x).pow(2).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step == 2:
            next(model.parameters()).grad[0] = float("inf")  # type: ignore[index]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] /= 2
        device.allocated += 1 << 20
    handle.detach()
    assert {event.step for event in tape.events()} == {0, 3}
    assert [event.value for event in tape.events("lr")] == [0.1, 0.0125]
    assert {span.step for span in phases(tape)} == {None, 0, 3}  # the first copy is before step 0


# Everything together


def everything(traced: bool, rank: int, ranks: int) -> tuple[list[torch.Tensor], Tape]:
    """Scaling with a skipped update, clipping, a schedule, two micro-steps, under DDP."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with recording(rank, ranks) as tape:
        handle = trace(ddp, optimizer) if traced else None
        for step in range(6):
            for micro_step in range(2):
                loss = ddp(torch.ones(3, 4) * (step + micro_step + rank)).pow(2).mean()
                scaler.scale(loss / 2).backward()
            if step == 3:
                next(ddp.parameters()).grad[0] = float("inf")  # type: ignore[index]
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step()
        if handle is not None:
            handle.detach()
    return [p.detach().clone() for p in ddp.parameters()], tape


def nothing_changes(rank: int, ranks: int) -> None:
    expected, _ = everything(False, rank, ranks)
    found, tape = everything(True, rank, ranks)
    assert failures == {}
    assert patched() == []
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.isfinite(theirs).all()
        assert torch.equal(mine, theirs)
    assert len(tape.events("loss")) == 12
    assert [event.step for event in tape.events("grad_norm")] == [0, 1, 2, 3, 4, 5]
    assert [event.step for event in tape.events("lr")] == [0, 1, 2, 4, 5]
    assert [event.step for event in tape.events("optimizer_skipped")] == [3]
    assert [event.value for event in tape.events("grad_scale")] == [8.0, 4.0]
    steps = [span for span in tape.spans() if span.kind == "step"]
    assert [span.step for span in steps] == [0, 1, 2, 3, 4, 5, 6]
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, [event.value for event in tape.events("grad_norm")])
    assert str(every[0]) == str(every[1])


@needs_scaler
@pytest.mark.slow
def test_parameters_are_the_same_to_the_bit_with_everything_around(tmp_path: Path) -> None:
    launch(nothing_changes, 2, tmp_path)
