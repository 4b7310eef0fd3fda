"""Gradient scaling, and clipping."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn

from tests.adapters.torch.small import names, network, phases, values
from tests.adapters.torch.tape import Tape
from tracekit.adapters.torch import trace

# Gradient scaling


needs_scaler = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="no scaler for the CPU in this PyTorch"
)


def scale_steps(
    tape: Tape, optimizer: Any, model: nn.Module, overflows: set[int], steps: int = 5
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    handle = trace(model, optimizer)
    for step in range(steps):
        loss = model(torch.ones(3, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        if step in overflows:
            next(model.parameters()).grad[0] = float("inf")  # type: ignore[index]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    handle.detach()


@needs_scaler
def test_a_skipped_update_is_told_and_ends_the_step(tape: Tape) -> None:
    model = network()
    scale_steps(tape, torch.optim.SGD(model.parameters(), lr=0.1), model, {1, 2})
    assert values(tape, "optimizer_skipped") == [(1, None), (2, None)]
    assert values(tape, "grad_scale") == [(0, 8.0), (2, 4.0), (3, 2.0)]
    forwards = [span.step for span in tape.spans() if span.name == "forward"]
    assert forwards == [0, 1, 2, 3, 4]
    updates = [span.step for span in tape.spans() if span.name == "optimizer_step"]
    assert updates == [0, 3, 4]
    assert [span.micro_step for span in phases(tape)] == [None] * len(phases(tape))


@needs_scaler
def test_an_optimizer_that_skips_by_itself_is_told_once(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scale_steps(tape, optimizer, model, {1})
    assert values(tape, "optimizer_skipped") == [(1, None)]
    forwards = [span.step for span in tape.spans() if span.name == "forward"]
    assert forwards == [0, 1, 2, 3, 4]


@needs_scaler
def test_the_loss_is_recorded_without_the_scale(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scale_steps(tape, optimizer, model, set(), 3)
    loss = model(torch.ones(3, 4)).pow(2).mean().item()
    assert [value for _, value in values(tape, "loss")] == [pytest.approx(loss)] * 3


@needs_scaler
def test_a_loss_made_of_a_scaled_one_is_left_out(tape: Tape) -> None:
    model = network()
    scaler = torch.amp.GradScaler("cpu")
    handle = trace(model)
    (scaler.scale(model(torch.ones(3, 4)).mean()) / 2).backward()
    model(torch.ones(3, 4)).mean().backward()
    handle.detach()
    assert len(tape.events("loss")) == 1


@needs_scaler
def test_a_scaler_that_is_off_or_of_another_optimizer_is_let_alone(tape: Tape) -> None:
    model, other = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    another = torch.optim.SGD(other.parameters(), lr=0.1)
    off, on = torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")
    handle = trace(model, optimizer)
    off.scale(model(torch.ones(1, 4)).sum()).backward()
    off.step(optimizer)
    off.update()
    on.scale(other(torch.ones(1, 4)).sum()).backward()
    next(other.parameters()).grad[0] = float("nan")  # type: ignore[index]
    on.step(another)
    on.update()
    handle.detach()
    assert values(tape, "optimizer_skipped") == values(tape, "grad_scale") == []
    assert names(tape, "optimizer") == ["optimizer_step"]


@needs_scaler
def test_an_error_inside_the_scaler_reaches_the_user(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    handle.detach()
    assert names(tape, "optimizer") == ["optimizer_step"]


# Clipping


def test_clipping_is_a_span_and_the_norm_an_event(tape: Tape) -> None:
    from torch.nn.utils import clip_grad_norm_ as imported_before

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    handle = trace(model, optimizer)
    norms = []
    for clip in (torch.nn.utils.clip_grad_norm_, imported_before):
        model(torch.ones(3, 4)).sum().backward()
        norms.append(clip(model.parameters(), 0.5).item())
        optimizer.step()
    handle.detach()
    assert values(tape, "grad_norm") == [(0, norms[0]), (1, norms[1])]
    spans = [span for span in tape.spans() if span.name == "clip_grad_norm"]
    assert [(span.kind, span.step) for span in spans] == [("user", 0), ("user", 1)]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert len(tape.events("grad_norm")) == 2


@pytest.mark.skipif(
    not hasattr(torch.nn.utils, "clip_grads_with_norm_"), reason="PyTorch before 2.6"
)
def test_clipping_with_a_norm_of_the_users_is_seen(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    model(torch.ones(3, 4)).sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, total_norm=norm)
    handle.detach()
    assert [event.value for event in tape.events("grad_norm")] == [norm.item()] * 2


def test_clipping_in_a_pytorch_without_its_two_halves_is_seen(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.utils import clip_grad

    monkeypatch.setattr(clip_grad, "_get_total_norm", None)
    monkeypatch.delattr(clip_grad, "_get_total_norm")
    norms = iter([torch.tensor(3.0)])
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: next(norms))
    handle = trace(network())
    torch.nn.utils.clip_grad_norm_([], 1.0)
    handle.detach()
    assert [event.value for event in tape.events("grad_norm")] == [3.0]
    assert names(tape) == ["clip_grad_norm"]


def test_the_norm_of_distributed_gradients_is_never_asked_for(
    tape: Tape, process_group: None
) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("PyTorch before 2.6")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    model = fsdp.fully_shard(network(), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    model(torch.ones(3, 4)).pow(2).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    handle.detach()
    assert type(norm) is not torch.Tensor
    assert "clip_grad_norm" in names(tape)
    assert tape.events("grad_norm") == []
    assert tape.fact("initial_parameters") == []
    [facts] = tape.fact("model")
    assert facts["parameter_bytes"] == facts["gradient_bytes"] == facts["parameters"] * 4
