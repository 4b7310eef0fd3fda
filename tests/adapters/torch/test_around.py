"""What happens around forward and backward: scaling, clipping, loss, rates, memory, copies."""

from __future__ import annotations

import gc
import io
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.adapters.torch.jobs import launch
from tests.adapters.torch.tape import Span, Tape, recording
from tests.adapters.torch.test_device import FakeDevice, Time
from tracekit import recorder
from tracekit.adapters.torch import _device, _memory, _trace, trace
from tracekit.adapters.torch._guard import failures
from tracekit.adapters.torch._patch import patched


@pytest.fixture
def tape() -> Iterator[Tape]:
    with recording() as tape:
        yield tape
    gc.collect()
    assert failures == {}
    assert patched() == []


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def phases(tape: Tape) -> list[Span]:
    return [span for span in tape.spans() if span.kind not in ("step", "gc")]


def names(tape: Tape, *kinds: str) -> list[str]:
    return [span.name for span in tape.spans() if not kinds or span.kind in kinds]


def values(tape: Tape, name: str) -> list[tuple[int | None, float | None]]:
    return [(event.step, event.value) for event in tape.events(name)]


# Loss


def test_the_loss_is_what_the_backward_is_called_on(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    losses = []
    for _ in range(3):
        for micro_step in range(2):
            loss = model(torch.ones(3, 4)).pow(2).mean()
            losses.append(loss.item())
            if micro_step:
                loss.backward()
            else:
                torch.autograd.backward([loss])
        optimizer.step()
    handle.detach()
    events = tape.events("loss")
    assert [event.value for event in events] == losses
    assert [event.step for event in events] == [0, 0, 1, 1, 2, 2]
    assert [event.micro_step for event in events] == [None, 1, 0, 1, 0, 1]


def test_what_is_no_loss_is_not_recorded(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    output = model(torch.ones(1, 4))
    output.backward(torch.ones(1, 2), retain_graph=True)  # many numbers
    output[0, :1].backward(torch.ones(1), retain_graph=True)  # a gradient is given
    torch.autograd.backward([output.sum(), output.mean()], retain_graph=True)  # two of them
    torch.autograd.backward(output[0, 0], grad_tensors=torch.ones(()))
    handle.detach()
    assert tape.events("loss") == []


def test_a_loss_that_is_no_number_any_more_is_recorded(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    (model(torch.ones(1, 4)).sum() * float("inf")).backward()
    (model(torch.ones(1, 4)).sum() * float("nan")).backward()
    handle.detach()
    first, second = (event.value for event in tape.events("loss"))
    assert first in (float("inf"), float("-inf"))
    assert second != second


def test_a_loss_on_an_accelerator_is_never_read(tape: Tape) -> None:
    handle = trace(network())
    loss = torch.ones((), device="meta", requires_grad=True) * 2
    loss.backward()  # item() of it would raise
    handle.detach()
    assert tape.events("loss") == []


# Learning rate


def train(model: nn.Module, optimizer: Any, steps: int, after: Callable[[], Any]) -> None:
    handle = trace(model, optimizer)
    for _ in range(steps):
        model(torch.ones(3, 4)).pow(2).mean().backward()
        optimizer.step()
        after()
    handle.detach()


def test_the_learning_rate_is_recorded_when_it_changes(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    train(model, optimizer, 6, scheduler.step)
    assert values(tape, "lr") == [(0, 0.5), (2, 0.25), (4, 0.125)]


def test_groups_with_rates_of_their_own_say_the_lowest_and_the_highest(tape: Tape) -> None:
    model = network()
    groups = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=1.0)

    def halve() -> None:
        optimizer.param_groups[3]["lr"] = 0.05

    train(model, optimizer, 3, halve)
    first, second = tape.events("lr")
    assert (first.value, first.attributes) == (0.1, {"lowest": 0.1, "highest": 0.4})
    assert (second.value, second.attributes["lowest"]) == (0.1, 0.05)


def test_a_rate_that_is_a_tensor_is_read_on_the_cpu_only(tape: Tape) -> None:
    model = network()
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=False)
    train(model, optimizer, 3, lambda: rate.mul_(0.5))
    assert values(tape, "lr") == [(0, 0.5), (1, 0.25), (2, 0.125)]

    class Elsewhere:
        param_groups = [{"lr": torch.ones((), device="meta")}]  # noqa: RUF012
        state: dict[Any, Any] = {}  # noqa: RUF012

        def step(self) -> None:
            return None

    before = len(tape.events("lr"))
    train(network(), Elsewhere(), 3, lambda: None)
    assert len(tape.events("lr")) == before


def test_a_second_optimizer_says_whose_rate_it_is(tape: Tape) -> None:
    model = network()
    one = torch.optim.SGD(model[0].parameters(), lr=0.1)  # type: ignore[index]
    two = torch.optim.Adam(model[2].parameters(), lr=0.2)  # type: ignore[index]
    handle = trace(model, one)
    trace(model, two)
    model(torch.ones(1, 4)).sum().backward()
    two.step()
    one.step()
    handle.detach()
    found = [(event.value, event.attributes) for event in tape.events("lr")]
    assert found == [(0.2, {"optimizer": "Adam"}), (0.1, {})]


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


# Memory


def test_memory_is_recorded_when_it_changes(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "EVERY_NS", 0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[torch.Tensor] = []
    train(model, optimizer, 3, lambda: kept.append(torch.ones(4 << 20)))
    events = tape.events("memory")
    assert [event.step for event in events] == [0, 1, 2]
    grown = (events[2].value or 0) - (events[0].value or 0)
    assert 20 << 20 < grown < 60 << 20


def test_memory_is_looked_at_a_hundred_times_a_second_at_most(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_memory, "EVERY_NS", 1 << 60)
    model = network()
    kept: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 5, lambda: kept.append(torch.ones(1 << 20)))
    assert len(tape.events("memory")) == 1


def test_where_memory_cannot_be_read_this_is_said_once(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder._current, "_said", set())
    monkeypatch.setattr(_memory, "STATM", "/proc/none")
    with caplog.at_level(logging.WARNING, "tracekit"):
        for _ in range(2):
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            train(model, optimizer, 2, lambda: None)
    assert tape.events("memory") == []
    assert caplog.text.count("memory is not recorded") == 1


def test_two_handles_of_a_thread_share_what_is_asked_of_the_process(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = trace(network()), trace(model, optimizer)
    files = len(os.listdir("/proc/self/fd"))
    first.detach()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    second.detach()
    assert len(tape.events("loss")) == len(tape.events("memory")) == 1
    assert len(os.listdir("/proc/self/fd")) == files - 1


# Checkpoints


class FromFiles(Dataset[Any]):
    """Loads each sample from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.load(self.path)


def test_loading_is_a_checkpoint_but_not_where_batches_come_from(
    tape: Tape, tmp_path: Path
) -> None:
    path = tmp_path / "tensor.pt"
    torch.save(torch.ones(4), path)
    loader = DataLoader(FromFiles(path), batch_size=1)
    handle = trace(network(), loader=loader)
    assert len(list(loader)) == 2
    torch.load(path)
    handle.detach()
    found = [(s.name, s.kind) for s in phases(tape)]
    assert found == [*[("data_wait", "data")] * 4, ("torch.load", "checkpoint")]


def test_what_another_thread_saves_keeps_nobody_waiting(tape: Tape) -> None:
    handle = trace(network())
    thread = threading.Thread(target=lambda: torch.save(torch.ones(4), io.BytesIO()))
    thread.start()
    thread.join()
    handle.detach()
    assert names(tape, "checkpoint") == []


IMPORTED_LATER = """
import sys, warnings
import torch
from tests.adapters.torch.tape import recording
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._guard import failures
from tracekit.adapters.torch._patch import patched
warnings.simplefilter("ignore")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with recording() as tape:
    handle = trace(model, optimizer)
    assert "torch.distributed.checkpoint" not in sys.modules
    def step():
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    step()
    import torch.distributed.checkpoint as dcp
    original = dcp.save
    step()
    assert dcp.save is not original
    dcp.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
    dcp.load({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
    handle.detach()
    assert dcp.save is original
assert (failures, patched()) == ({}, []), (failures, patched())
found = [(s.name, s.kind) for s in tape.spans() if s.kind == "checkpoint"]
assert found == [("dcp.save", "checkpoint"), ("dcp.load", "checkpoint")], found
"""


@pytest.mark.slow
def test_distributed_checkpoints_are_seen_however_late_they_are_imported(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", IMPORTED_LATER, str(tmp_path / "saved")]
    subprocess.run(command, check=True, cwd=root, timeout=240)


@pytest.mark.slow
def test_of_an_asynchronous_checkpoint_the_blocking_part_is_recorded(
    tape: Tape, process_group: None, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp

    model = network()
    handle = trace(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save: Any = getattr(dcp, "async_save")  # noqa: B009  (torch does not export it to mypy)
        future = save({"model": model.state_dict()}, checkpoint_id=tmp_path)
        future.result()
    handle.detach()
    assert names(tape, "checkpoint") == ["dcp.async_save"]
    assert {span.lane for span in tape.spans() if span.kind == "checkpoint"} == {
        "thread:MainThread"
    }


# Accelerators, through the seam


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    time = Time()
    device = FakeDevice(time)
    monkeypatch.setattr(_device, "clock", time)
    monkeypatch.setattr(_trace, "accelerator_of", lambda model: device)
    return device


def test_a_copy_from_the_host_is_a_launch_and_a_transfer_of_the_device(
    tape: Tape, device: FakeDevice
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    x = torch.ones(3, 4)
    elsewhere = x.to("meta", non_blocking=True)
    assert elsewhere.device.type == "meta"
    elsewhere.to(torch.float64)  # no copy from the host
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to("cpu") is x
    assert x.to(x) is x
    assert x.to(dtype=torch.float64).to(elsewhere).device.type == "meta"
    model(x).sum().backward()
    optimizer.step()
    device.time.now += 1_000_000
    optimizer.step()
    handle.detach()
    copies = [span for span in tape.spans() if span.name == "to_device"]
    assert [(s.kind, s.device) for s in copies if not s.device] == [("launch", False)] * 2
    on_device = [span for span in copies if span.device]
    assert [(s.kind, s.lane) for s in on_device] == [("transfer", "stream:fake:0:7")] * 2
    assert [span.attributes["bytes"] for span in on_device] == [48, 96]
    assert "to" not in vars(torch.Tensor)


def test_without_an_accelerator_copies_are_let_alone(tape: Tape) -> None:
    handle = trace(network())
    assert "Tensor.to" not in patched()
    handle.detach()


def test_a_device_tells_its_name_and_its_memory(
    tape: Tape, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_memory, "EVERY_NS", 0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def grow() -> None:
        device.allocated += 1 << 19

    train(model, optimizer, 4, grow)
    assert tape.fact("device") == [{"device": "cpu", "name": "made up"}]
    events = tape.events("memory")
    assert [(event.step, event.value) for event in events] == [(0, 2 << 20), (2, 3 << 20)]
    assert events[0].attributes == {"peak": 3 << 20, "reserved": 4 << 20}


def test_a_captured_stream_is_not_touched_by_copies(tape: Tape, device: FakeDevice) -> None:
    handle = trace(network())
    device.captures = True
    torch.ones(3).to("meta")
    handle.detach()
    assert device.events == 0


# Activation checkpointing and static graphs


class Checkpointed(nn.Module):
    """Computes its activations anew in the backward, in two ways."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_activations_computed_anew_belong_to_the_backward(
    tape: Tape, process_group: None, reentrant: bool, static: bool
) -> None:
    model = Checkpointed(reentrant)
    ddp = DistributedDataParallel(model, static_graph=static)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    handle = trace(ddp, optimizer)
    for block in model.blocks:
        trace(block)  # what is computed anew is watched too
    for _ in range(4):
        ddp(torch.ones(2, 4, requires_grad=True)).sum().backward()
        optimizer.step()
    for block in model.blocks:
        trace(block).detach()
    handle.detach()
    spans = [span for span in phases(tape) if span.kind != "comm"]
    kinds = [span.kind for span in spans if span.name != "broadcast"]
    assert kinds == ["forward", "backward", "optimizer"] * 4
    assert [span.micro_step for span in spans] == [None] * len(spans)
    reductions = [span for span in tape.spans() if span.op == "all_reduce"]
    assert [span.step for span in reductions] == [0, 1, 2, 3]


def test_a_model_that_is_checkpointed_as_a_whole_has_one_forward(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    for _ in range(2):
        out: Any = checkpoint(model, torch.ones(3, 4), use_reentrant=False)
        out.sum().backward()
        optimizer.step()
    handle.detach()
    assert names(tape, "forward", "backward", "optimizer", "eval") == [
        *["forward", "backward", "optimizer_step"] * 2
    ]


# Steps without tracing, to compare with


@needs_scaler
def test_while_recording_pauses_steps_go_on_and_say_nothing(
    tape: Tape, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_memory, "EVERY_NS", 0)
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
