"""A small network to train, and what a tape has of it in a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.adapters.torch.tape import Span, Tape
from tracekit.adapters.torch import trace


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))


def numbers(count: int = 6) -> DataLoader[Any]:
    return DataLoader([torch.ones(4) * i for i in range(count)], batch_size=2)  # type: ignore[arg-type]


def traced_steps(model: nn.Module, optimizer: Any, steps: int, after: Callable[[], Any]) -> None:
    """Train under ``trace()``; ``after`` is called behind each update."""
    handle = trace(model, optimizer)
    for _ in range(steps):
        model(torch.ones(3, 4)).pow(2).mean().backward()
        optimizer.step()
        after()
    handle.detach()


def phases(tape: Tape) -> list[Span]:
    return [span for span in tape.spans() if span.kind not in ("step", "gc")]


def names(tape: Tape, *kinds: str) -> list[str]:
    return [span.name for span in tape.spans() if not kinds or span.kind in kinds]


def values(tape: Tape, name: str) -> list[tuple[int | None, float | None]]:
    return [(event.step, event.value) for event in tape.events(name)]
