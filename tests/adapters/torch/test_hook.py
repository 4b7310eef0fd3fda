"""The bucket dispatcher in one process: who gets which hook, and what stays after detach()."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.adapters.torch.jobs import reduces_gradients
from tests.adapters.torch.tape import Tape
from tracekit.adapters.torch import trace


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


SEES_THROUGH = hasattr(torch.compiler, "is_compiling")
"""Whether the compiler knows how to leave our functions out; in 2.1 not yet."""


def wrapped() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))


def backward(ddp: DistributedDataParallel) -> None:
    ddp(torch.ones(3, 4)).sum().backward()


def doubling(calls, bucket):  # type: ignore[no-untyped-def]
    """A hook of the user's; its state is the list of its calls."""
    calls.append(bucket.index())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer() * 2)
    return future


def test_buckets_are_asynchronous_spans_of_the_group(tape: Tape) -> None:
    ddp = wrapped()
    handle = trace(ddp, buckets=True)
    backward(ddp)
    handle.detach()
    [bucket] = [span for span in tape.spans() if span.op == "all_reduce"]
    [group] = tape.fact("group")
    assert bucket.lane == f"group:{group['id']}"
    assert bucket.nbytes == sum(p.numel() * 4 for p in ddp.parameters())
    [parent] = [span for span in tape.spans() if span.id == bucket.parent]
    assert parent.name == "backward"


def test_the_buckets_are_those_that_pytorch_made(tape: Tape) -> None:
    """Their number is DDP's own, and two gradients keep a hook once the order is known."""
    layers = [nn.Linear(256, 256) for _ in range(8)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    handle = trace(ddp)
    for _ in range(6):
        ddp(torch.ones(2, 256)).sum().backward()
    buckets = str(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(",")
    assert len(buckets) > 1
    reductions = [span for span in tape.spans() if span.op == "all_reduce"]
    assert reductions[0].attributes["buckets"] == 1
    assert {span.attributes["buckets"] for span in reductions[2:]} == {len(buckets)}
    for span in reductions[2:]:
        assert span.attributes["launch_ns"] < span.start
    assert sum(bool(p._post_accumulate_grad_hooks) for p in ddp.parameters()) == 2
    handle.detach()


class Turns(nn.Module):
    """Its layers come in another order each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(8)])
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 3
        for place in range(8):
            x = self.layers[(place + self.calls) % 8](x)
        return x


def test_where_the_order_changes_every_bucket_keeps_its_hook(tape: Tape) -> None:
    ddp = DistributedDataParallel(Turns(), bucket_cap_mb=0.2)
    handle = trace(ddp)
    for _ in range(6):
        ddp(torch.ones(2, 256)).sum().backward()
    buckets = str(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(",")
    hooked = sum(bool(p._post_accumulate_grad_hooks) for p in ddp.parameters())
    assert hooked >= len(buckets) > 2
    assert len([span for span in tape.spans() if span.op == "all_reduce"]) == 6
    handle.detach()


@pytest.mark.slow
def test_ddp_inside_torch_compile(tape: Tape) -> None:
    ddp = wrapped()
    compiled: Any = torch.compile(ddp, backend="eager")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    handle = trace(compiled, optimizer)
    for _ in range(3):
        compiled(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    handle.detach()
    del compiled
    torch.compiler.reset()
    names = [span.name for span in tape.spans() if span.kind not in ("step", "gc")]
    known = ("forward", "all_reduce", "optimizer_step") if SEES_THROUGH else ("optimizer_step",)
    assert [names.count(name) for name in known] == [3] * len(known)


def test_a_hook_registered_later_is_taken_in(tape: Tape) -> None:
    ddp = wrapped()
    handle = trace(ddp, buckets=True)
    calls: list[Any] = []
    ddp.register_comm_hook(calls, doubling)
    backward(ddp)
    first = [p.grad.clone() for p in ddp.parameters() if p.grad is not None]
    handle.detach()
    ddp.zero_grad()
    backward(ddp)
    second = [p.grad for p in ddp.parameters() if p.grad is not None]
    assert calls == [0, 0]
    plain = wrapped()
    backward(plain)
    for one, two, p in zip(first, second, plain.parameters(), strict=True):
        assert p.grad is not None
        assert torch.equal(one, p.grad * 2)
        assert torch.equal(two, p.grad * 2)
    assert len([span for span in tape.spans() if span.op == "all_reduce"]) == 1


def test_a_hook_registered_after_detach_is_taken_in(tape: Tape) -> None:
    ddp = wrapped()
    trace(ddp, buckets=True).detach()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[attr-defined]
    backward(ddp)


def test_a_second_hook_is_refused_as_pytorch_does(tape: Tape) -> None:
    ddp = wrapped()
    handle = trace(ddp, buckets=True)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with pytest.raises(RuntimeError, match="can only be called once"):
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    handle.detach()


def test_an_error_in_the_users_hook_reaches_the_user(tape: Tape) -> None:
    def broken(_, bucket):  # type: ignore[no-untyped-def]
        raise KeyError("mine")

    ddp = wrapped()
    handle = trace(ddp, buckets=True)
    ddp.register_comm_hook(None, broken)
    with pytest.raises(KeyError, match="mine"):
        backward(ddp)
    assert [span.name for span in tape.spans() if span.error] == ["backward", "all_reduce"]
    assert tape.open_spans() == []
    handle.detach()


def test_a_hook_that_was_there_keeps_its_place(tape: Tape) -> None:
    ddp = wrapped()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)  # type: ignore[attr-defined]
    handle = trace(ddp, buckets=True)
    backward(ddp)
    handle.detach()
    assert [span.lane for span in tape.spans() if reduces_gradients(span)] == ["thread:MainThread"]


def test_under_join_with_a_varying_divisor_there_is_no_hook(tape: Tape) -> None:
    ddp = wrapped()
    with ddp.join(divide_by_initial_world_size=False):
        handle = trace(ddp, buckets=True)
        backward(ddp)
    handle.detach()
    assert [span.lane for span in tape.spans() if reduces_gradients(span)] == ["thread:MainThread"]


def test_a_second_trace_records_buckets_again(tape: Tape) -> None:
    ddp = wrapped()
    for _ in range(2):
        handle = trace(ddp, buckets=True)
        backward(ddp)
        handle.detach()
        backward(ddp)
    buckets = [span for span in tape.spans() if span.op == "all_reduce"]
    assert [span.lane[:6] for span in buckets] == ["group:"] * 2


def test_detach_restores_all_but_the_pass_through(tape: Tape) -> None:
    ddp = wrapped()
    backward(ddp)
    backward(ddp)
    places = [torch, torch.autograd, torch.Tensor, dist, Join, DistributedDataParallel, nn.Module]
    places += [dist.distributed_c10d, dist.ProcessGroup, dist.Work]
    functional = torch.ops._c10d_functional
    if SEES_THROUGH:
        places += [functional.all_reduce, functional.wait_tensor.default]
    before = [dict(vars(place)) for place in places]
    own = dict(vars(ddp))
    hooks = [p._post_accumulate_grad_hooks for p in ddp.parameters()]
    for buckets in (False, True):
        handle = trace(ddp, buckets=buckets)
        backward(ddp)
        handle.detach()
        assert {k: v for k, v in vars(ddp).items() if own.get(k) is not v} == {}
        assert [p._post_accumulate_grad_hooks for p in ddp.parameters()] == hooks
        changed = {
            name
            for place, saved in zip(places, before, strict=True)
            for name, value in vars(place).items()
            if saved.get(name) is not value
        }
        passing = {"_register_comm_hook", "_register_builtin_comm_hook", "notify_join_context"}
        assert changed == (passing if buckets else set())


def test_nothing_keeps_the_model_alive(tape: Tape) -> None:
    for buckets in (False, True):
        ddp = wrapped()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        handle = trace(ddp, optimizer, buckets=buckets)
        backward(ddp)
        optimizer.step()
        objects = (ddp, next(ddp.parameters()), optimizer)
        watched: list[weakref.ref[Any]] = [weakref.ref(one) for one in objects]
        del ddp, objects, optimizer
        gc.collect()
        assert [reference() for reference in watched] == [None] * 3
        handle.detach()


def test_wrapping_again_numbers_on(tape: Tape) -> None:
    """Two DDP objects of one group never give two all-reduces the same number."""
    one, two = wrapped(), wrapped()
    first, second = trace(one), trace(two)
    for ddp in (one, two, one):
        backward(ddp)
    first.detach()
    second.detach()
    numbers = [span.seq for span in tape.spans() if span.op == "all_reduce"]
    assert len(numbers) == 3
    assert numbers == sorted({number for number in numbers if number})
    assert len(tape.fact("group")) == 1
