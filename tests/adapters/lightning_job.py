"""Small trainings by Lightning; run by a launcher, this file trains on two ranks."""

from __future__ import annotations

import sys
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.adapters.torch.tape import Span, Tape, recording
from tracekit.adapters._patch import patched
from tracekit.adapters.lightning import TracekitCallback
from tracekit.adapters.torch._guard import failures


class Data(torch.utils.data.Dataset[torch.Tensor]):
    """The same numbers in every process."""

    def __init__(self, count: int) -> None:
        self.values = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index]


class Layers:
    """A module of any Lightning; it computes its loss without ever calling itself."""

    fails_at: int | None = None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        if batch_idx == self.fails_at:
            raise KeyError("mine")
        return self.layers(batch).pow(2).mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.layers(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers.parameters(), lr=0.1, momentum=0.5)


class Net(Layers, pl.LightningModule):  # type: ignore[misc]
    """Lightning optimizes."""


class Manual(Net):
    """Optimizes by itself: two updates in a batch, of two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.layers(batch).pow(2).mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        parts = [self.layers[0].parameters(), self.layers[2].parameters()]
        return [torch.optim.SGD(part, lr=0.1) for part in parts], []


def fit(model: Any, batches: int = 4, val: bool = False, **options: Any) -> list[torch.Tensor]:
    """Train in this process; ``options`` are the Trainer's. Returns the parameters."""
    chosen: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    trainer = options.pop("trainer", pl.Trainer)(**{**chosen, **options})
    ranks = trainer.world_size
    data = DataLoader(Data(batches * 4 * ranks), batch_size=4)
    trainer.fit(model, data, DataLoader(Data(8 * ranks), batch_size=4) if val else None)
    return [parameter.detach().clone() for parameter in model.parameters()]


def steps_of(tape: Tape, name: str) -> list[int | None]:
    return [span.step for span in tape.spans() if span.name == name]


def reductions(tape: Tape) -> list[Span]:
    """DDP's all-reduces; Lightning makes others of its own."""
    by_id = {span.id: span for span in tape.spans()}
    found = [span for span in tape.spans() if span.op == "all_reduce" and span.parent]
    return [span for span in found if by_id[span.parent].name == "backward"]


def check_two_ranks() -> None:
    """The same bits with and without the callback; each update has one all-reduce everywhere."""
    ddp: dict[str, Any] = {"strategy": "ddp", "devices": 2, "val": True}
    for model, accumulated in ((Net, 1), (Net, 2), (Manual, 1)):
        more = {**ddp, "accumulate_grad_batches": accumulated}
        expected = fit(model(), **more)
        with recording(dist.get_rank(), 2) as tape:
            found = fit(model(), callbacks=[TracekitCallback()], **more)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), model
        updates = 4 // accumulated
        in_a_step = 2 if model is Manual else 1
        every = [step for step in range(updates) for _ in range(in_a_step)]
        reduced = reductions(tape)
        assert [span.step for span in reduced] == every, (model, accumulated)
        assert steps_of(tape, "optimizer_step") == every, (model, accumulated)
        assert steps_of(tape, "validation") == [updates]
        backwards = [span for span in tape.spans() if span.name == "backward"]
        assert len(backwards) == 4 * in_a_step
        if accumulated > 1:
            assert [span.micro_step for span in backwards] == [0, 1] * updates
        mine = torch.tensor([span.seq or 0 for span in reduced])
        theirs = [torch.zeros_like(mine) for _ in range(2)]
        dist.all_gather(theirs, mine)
        assert torch.equal(*theirs)
        assert "model.0" not in tape.open_spans()
    assert failures == {}
    assert patched() == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "check" in sys.argv:
        check_two_ranks()
    else:
        fit(Net(), strategy="ddp", devices=2, callbacks=[TracekitCallback()])
