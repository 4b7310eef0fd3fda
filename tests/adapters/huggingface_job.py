"""Small trainings by Hugging Face's Trainer and by Accelerate; torchrun runs this file."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

from tests.adapters.torch.tape import Span, Tape, recording
from tracekit.adapters._patch import patched
from tracekit.adapters.huggingface import TracekitCallback
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._guard import failures

Batch = dict[str, torch.Tensor]


class Data(Dataset[Batch]):
    """The same numbers in every process."""

    def __init__(self, count: int) -> None:
        self.values = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Batch:
        return {"x": self.values[index], "labels": self.values[index].sum()}


class Net(torch.nn.Module):
    """A model as the Trainer wants it: it computes its own loss."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
        )
        self.fails_at = fails_at
        self.calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Batch:
        if self.calls == self.fails_at:
            raise KeyError("mine")
        self.calls += 1
        found = self.layers(x).squeeze(1)
        return {"loss": (found - labels).pow(2).mean(), "logits": found}


def train(
    folder: Path | str,
    model: Net | None = None,
    traced: bool = True,
    batches: int = 4,
    resume: str | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Train in this process; ``options`` are the training arguments. Returns the parameters."""
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(**{**chosen, **options})
    trainer = Trainer(
        model=model or Net(),
        args=args,
        train_dataset=Data(4 * batches * args.world_size),
        eval_dataset=Data(8 * args.world_size),
        callbacks=[TracekitCallback()] if traced else [],
    )
    trainer.train(resume_from_checkpoint=resume)
    return [parameter.detach().cpu().clone() for parameter in trainer.model.parameters()]


def accelerated(accumulate: int = 1, traced: bool = True, batches: int = 4) -> list[torch.Tensor]:
    """A loop of one's own, with what ``prepare`` returned."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader = DataLoader(Data(4 * batches * accelerator.num_processes), batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    handle = trace(model, optimizer=optimizer, loader=loader) if traced else None
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if handle is not None:
        handle.detach()
    return [parameter.detach().clone() for parameter in model.parameters()]


def steps_of(tape: Tape, name: str) -> list[int | None]:
    return [span.step for span in tape.spans() if span.name == name]


def reductions(tape: Tape) -> list[Span]:
    """DDP's all-reduces; the libraries make others of their own."""
    by_id = {span.id: span for span in tape.spans()}
    found = [span for span in tape.spans() if span.op == "all_reduce" and span.parent]
    return [span for span in found if by_id[span.parent].name == "backward"]


def check_two_ranks(folder: str) -> None:
    """The same bits with and without tracing; each update has one all-reduce everywhere."""
    for accumulate in (1, 2):
        options: dict[str, Any] = {
            "gradient_accumulation_steps": accumulate,
            "eval_strategy": "epoch",
        }
        expected = train(folder, traced=False, **options)
        with recording(dist.get_rank(), 2) as tape:
            found = train(folder, **options)
        check(tape, found, expected, 4 // accumulate, accumulate)
        assert steps_of(tape, "evaluate") == [4 // accumulate]
        expected = accelerated(accumulate, traced=False)
        with recording(dist.get_rank(), 2) as tape:
            found = accelerated(accumulate)
        check(tape, found, expected, 4 // accumulate, accumulate)
    assert failures == {}
    assert patched() == []


def check(
    tape: Tape, found: list[torch.Tensor], expected: list[torch.Tensor], updates: int, each: int
) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    reduced = reductions(tape)
    assert [span.step for span in reduced] == list(range(updates))
    assert steps_of(tape, "optimizer_step") == list(range(updates))
    backwards = [(s.step, s.micro_step) for s in tape.spans() if s.name == "backward"]
    micro_steps = range(each) if each > 1 else [None]
    assert backwards == [(step, micro) for step in range(updates) for micro in micro_steps]
    mine = torch.tensor([span.seq or 0 for span in reduced])
    theirs = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(theirs, mine)
    assert torch.equal(*theirs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        if "check" in sys.argv:
            check_two_ranks(place)
        else:
            train(place)
