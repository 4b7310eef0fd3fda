"""What is saved and loaded, and activations that are computed anew."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.adapters.torch.small import names, network, phases
from tests.adapters.torch.tape import Tape
from tracekit.adapters.torch import trace

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
from tracekit.adapters._patch import patched
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
