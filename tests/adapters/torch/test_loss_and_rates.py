"""Loss and learning rate are events, read where that costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.adapters.torch.small import network, traced_steps, values
from tests.adapters.torch.tape import Tape
from tracekit.adapters.torch import trace

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


def test_the_learning_rate_is_recorded_when_it_changes(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    traced_steps(model, optimizer, 6, scheduler.step)
    assert values(tape, "lr") == [(0, 0.5), (2, 0.25), (4, 0.125)]


def test_groups_with_rates_of_their_own_say_the_lowest_and_the_highest(tape: Tape) -> None:
    model = network()
    groups = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=1.0)

    def halve() -> None:
        optimizer.param_groups[3]["lr"] = 0.05

    traced_steps(model, optimizer, 3, halve)
    first, second = tape.events("lr")
    assert (first.value, first.attributes) == (0.1, {"lowest": 0.1, "highest": 0.4})
    assert (second.value, second.attributes["lowest"]) == (0.1, 0.05)


def test_a_rate_that_is_a_tensor_is_read_on_the_cpu_only(tape: Tape) -> None:
    model = network()
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=False)
    traced_steps(model, optimizer, 3, lambda: rate.mul_(0.5))
    assert values(tape, "lr") == [(0, 0.5), (1, 0.25), (2, 0.125)]

    class Elsewhere:
        param_groups = [{"lr": torch.ones((), device="meta")}]  # noqa: RUF012
        state: dict[Any, Any] = {}  # noqa: RUF012

        def step(self) -> None:
            return None

    before = len(tape.events("lr"))
    traced_steps(network(), Elsewhere(), 3, lambda: None)
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
