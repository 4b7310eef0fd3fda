"""What is traced can be compiled and exported as if it were not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.adapters.torch.small import network
from tests.adapters.torch.tape import recording
from tracekit.adapters.torch import trace


class Around(nn.Module):
    """A model that nobody traces, with one inside that is traced."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(batch) * 2
        return result


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_traced_model_is_exported(strict: bool, inside: bool) -> None:
    model = network()
    batch = torch.ones(3, 4)
    with recording():
        handle = trace(model)
        whole = Around(model) if inside else model
        exported: Any = torch.export.export(whole, (batch,), strict=strict)
        assert torch.equal(exported.module()(batch), whole(batch))
        handle.detach()


def losses(traced: bool) -> list[float]:
    """Of a training whose whole step is compiled."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    handle = trace(model, optimizer) if traced else None
    compiled: Any = torch.compile(step, backend="eager")
    found = [float(compiled(torch.ones(3, 4))) for _ in range(4)]
    if handle is not None:
        handle.detach()
    return found


def test_a_compiled_step_with_its_backward_gives_no_warning() -> None:
    with recording(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        untraced = losses(False)
        torch.compiler.reset()
        assert losses(True) == untraced
    assert not [one for one in warned if "does not know how to trace" in str(one.message)]
