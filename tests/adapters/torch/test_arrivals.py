"""DDP's all-reduce has the backend's number, whoever else calls in its group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.adapters.torch.small import network
from tests.adapters.torch.tape import Tape, recording
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._comm.arrivals import SURE_AFTER

STEPS = 40
MARKED = 30
"""By then the adapter is sure how many calls a backward makes."""
_allreduce: Any = dist.ProcessGroup.allreduce


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def number() -> int:
    backend: Any = dist.group.WORLD
    return int(backend._get_sequence_number_for_group())


def unseen_call() -> None:
    """A call of which nothing in Python tells: by a function that was taken before trace()."""
    _allreduce(dist.group.WORLD, [torch.ones(1)], dist.AllreduceOptions()).wait()


def seen_call() -> None:
    dist.all_reduce(torch.ones(1))


def trained(
    tape: Tape, before: Callable[[int], None], inside: Callable[[int], None]
) -> tuple[list[int], list[int]]:
    """Train; returns the numbers of the backend's after each backward, and those that are told."""
    model = DistributedDataParallel(network())
    model(torch.ones(3, 4)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = trace(model, optimizer)
    true = []
    step = 0
    first = next(iter(model.parameters()))
    first.register_hook(lambda _: inside(step))
    for step in range(STEPS):
        loss = model(torch.ones(3, 4)).sum()
        before(step)
        loss.backward()
        true.append(number())
        optimizer.step()
    handle.detach()
    gradients = sum(parameter.numel() * 4 for parameter in model.parameters())
    return true, [span.seq or 0 for span in tape.spans() if span.nbytes == gradients]


def never(step: int) -> None:
    return None


def test_the_numbers_are_the_backend_s() -> None:
    with recording() as tape:
        true, told = trained(tape, never, never)
    assert told == true
    assert len(told) == STEPS


@pytest.mark.parametrize("call", [seen_call, unseen_call])
@pytest.mark.parametrize("every", [1, 7])
def test_calls_between_two_backwards_change_no_number(call: Callable[[], None], every: int) -> None:
    def before(step: int) -> None:
        if not step % every:
            call()

    with recording() as tape:
        true, told = trained(tape, before, never)
    assert told == true


@pytest.mark.parametrize("call", [seen_call, unseen_call])
def test_a_call_in_every_backward_changes_no_number(call: Callable[[], None]) -> None:
    with recording() as tape:
        true, told = trained(tape, never, lambda _: call())
    assert told == true


def test_a_call_that_is_seen_in_one_backward_changes_no_number() -> None:
    with recording() as tape:
        true, told = trained(tape, never, lambda step: seen_call() if step == MARKED else None)
    assert told == true


def test_a_call_that_nobody_sees_in_one_backward_costs_only_that_number() -> None:
    with recording() as tape:
        true, told = trained(tape, never, lambda step: unseen_call() if step == MARKED else None)
    assert told[:MARKED] + told[MARKED + 1 :] == true[:MARKED] + true[MARKED + 1 :]
    assert told[MARKED] == true[MARKED] - 1


def test_a_call_that_nobody_saw_shows_while_the_next_backward_reduces() -> None:
    """The open-span table of a rank that hangs there is all that tells of it."""
    with recording() as tape:
        begun: list[int] = []

        def before(step: int) -> None:
            begun.append(max(tape.group_words[0::4]))  # of the backward before
            if step == MARKED:
                unseen_call()

        true, _ = trained(tape, before, never)
    assert begun[MARKED + 1] == true[MARKED]
    assert begun[SURE_AFTER:] == true[SURE_AFTER - 1 : -1]
