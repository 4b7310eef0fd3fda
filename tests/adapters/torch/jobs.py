"""Small training jobs of real processes; what they find wrong they raise."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.adapters.torch.tape import Span, Tape, recording
from tracekit.adapters.torch import trace

Job = Callable[[int, int], None]


def launch(job: Job, ranks: int, folder: Path) -> None:
    """Run ``job(rank, ranks)`` in real processes with gloo between them."""
    arguments = (ranks, str(folder / "store"), job)
    mp.spawn(_worker, arguments, nprocs=ranks)  # type: ignore[attr-defined,no-untyped-call]


def _worker(rank: int, ranks: int, store: str, job: Job) -> None:
    faulthandler.enable()  # where a signal ended it
    faulthandler.dump_traceback_later(180, exit=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    try:
        job(rank, ranks)
    finally:
        # gloo's threads still drop the callbacks of Python hooks; PyTorch 2.1 joins these threads
        # while it holds the interpreter that they need for it.
        time.sleep(0.1)
        dist.destroy_process_group()


def network(batch_norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, 3)]
    return nn.Sequential(*([nn.BatchNorm1d(12)] if batch_norm else []), *layers)


class Branches(nn.Module):
    """Uses one of two layers in turn, so that some gradients never come."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 12, sparse=False)
        self.either = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12)])
        self.last = nn.Linear(12, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.either[self.calls % 2](x) + self.table.weight.mean(0)
        return self.last(hidden)  # type: ignore[no-any-return]


class Sparse(nn.Module):
    """Has a gradient that is sparse."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 12, sparse=True)
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = (x.abs() * 7).long() % 12
        return self.last(self.table(index).mean(1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Case:
    """One way to train, and how it is traced."""

    view: bool = False
    set_to_none: bool = True
    accumulate: int = 1
    join: bool | None = None
    hook: str | None = None
    hook_first: bool = True
    model: Callable[[], nn.Module] = network
    find_unused: bool = False
    static: bool = False
    scheduler: bool = False
    detach_at: int | None = None
    buckets: bool = False
    steps: int = 20
    traced: bool = True


def train(case: Case, rank: int, ranks: int) -> tuple[list[torch.Tensor], Tape]:
    """Train with fixed seeds; returns the parameters and what was recorded."""
    ddp = DistributedDataParallel(
        case.model(),
        # PowerSGD waits on gloo's two threads for gloo's two threads: one bucket, or it hangs.
        bucket_cap_mb=25 if case.hook == "powersgd" else 0.004,
        gradient_as_bucket_view=case.view,
        find_unused_parameters=case.find_unused,
        static_graph=case.static,
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5) if case.scheduler else None
    generator = torch.Generator().manual_seed(100 + rank)
    count = case.steps * case.accumulate - (2 * rank if case.join is not None else 0)
    inputs = [torch.randn(4, 12, generator=generator) for _ in range(count)]
    loader: DataLoader[torch.Tensor] = DataLoader(inputs, batch_size=None)  # type: ignore[arg-type]
    with recording(rank, ranks) as tape, contextlib.ExitStack() as stack:
        if case.hook and case.hook_first:
            register(ddp, case.hook)
        handle = trace(ddp, optimizer, loader, case.buckets) if case.traced else None
        if case.hook and not case.hook_first:
            register(ddp, case.hook)
        if case.join is not None:
            stack.enter_context(ddp.join(divide_by_initial_world_size=case.join))
        for number, batch in enumerate(loader):
            last = (number + 1) % case.accumulate == 0
            with contextlib.nullcontext() if last else ddp.no_sync():
                ddp(batch).pow(2).mean().backward()
            if last:
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad(set_to_none=case.set_to_none)
            if handle is not None and number == case.detach_at:
                handle.detach()
        stack.close()
        # The last bucket of a user's hook ends on gloo's thread, beside the return of backward.
        for _ in range(100):
            if "all_reduce" not in tape.open_spans():
                break
            time.sleep(0.01)
        if handle is not None:
            handle.detach()
    return [p.detach().clone() for p in ddp.parameters()], tape


def register(ddp: DistributedDataParallel, hook: str) -> None:
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=4)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        kind = getattr(dist.BuiltinCommHookType, hook)  # type: ignore[attr-defined]
        ddp._register_builtin_comm_hook(kind)


def cases() -> Iterator[Case]:
    for buckets in (False, True):
        plain = Case(buckets=buckets)
        yield from (
            plain,
            replace(plain, view=True),
            replace(plain, view=True, set_to_none=False),
            replace(plain, set_to_none=False, scheduler=True),
            replace(plain, accumulate=3),
            replace(plain, accumulate=3, view=True),
            replace(plain, join=True),
            replace(plain, join=False),
            replace(plain, model=Branches, find_unused=True),
            replace(plain, static=True),
            replace(plain, model=Sparse),
            replace(plain, detach_at=9),
            replace(plain, detach_at=9, view=True),
            replace(plain, detach_at=9, join=False),
        )
        for hook in ("fp16", "powersgd", "FP16_COMPRESS", "ALLREDUCE"):
            for first in (True, False):
                yield replace(plain, hook=hook, hook_first=first)
        yield replace(plain, hook="powersgd", hook_first=False, detach_at=9)


def train_the_same_with_and_without_tracing(rank: int, ranks: int) -> None:
    """Every case ends in the same bits, and tracing was not a no-op."""
    for case in cases():
        expected, _ = train(replace(case, traced=False), rank, ranks)
        found, tape = train(case, rank, ranks)
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.isfinite(theirs).all(), case
            assert torch.equal(mine, theirs), case
        lanes = {span.lane for span in tape.spans() if reduces_gradients(span)}
        assert lanes == expected_lanes(case, ranks, lanes), case
        assert tape.open_spans() == [], case
        assert tape.counts.keys() <= {"dropped"}, case  # a gc that begins inside the recorder


LISTS_HOOKS = "_comm_hooks" in DistributedDataParallel.__init__.__code__.co_names
"""Whether DDP tells its hooks; in 2.1 not yet."""
COUNT_BYTES = 8
"""What ``Join`` reduces at most, to count the ranks that have inputs and to choose one of them."""


def reduces_gradients(span: Span) -> bool:
    return span.op == "all_reduce" and span.name != "wait" and (span.nbytes or 0) > COUNT_BYTES


def expected_lanes(case: Case, ranks: int, lanes: set[str]) -> set[str]:
    """Buckets lie on their group's lane, unless the hook could not be registered.

    The calls of hooks in Python are seen one by one, as they are made.
    """
    taken = case.hook is not None and case.hook_first
    in_python = case.hook in ("fp16", "powersgd")
    if in_python and not LISTS_HOOKS and not (case.hook_first or case.buckets):
        return lanes  # one that comes later is not noticed: its calls and the arrivals are seen
    if not in_python and (not case.buckets or taken or (case.view and ranks == 3)):
        return {"thread:MainThread"}
    return {lane for lane in lanes if lane.startswith("group:")} or {"group:"}


# What the spans say


class Slow(torch.autograd.Function):
    """Passes values through; its backward takes a while on one rank."""

    seconds = 0.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(Slow.seconds)
        return gradient


class SlowBackward(nn.Module):
    """A network in which backward is slow at the end (the first layer) or at the beginning."""

    def __init__(self, place: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(12, 40), nn.Linear(40, 3)
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if self.place == "between":
            hidden = Slow.apply(hidden)  # type: ignore[no-untyped-call]
        result: torch.Tensor = self.second(hidden)
        return Slow.apply(result) if self.place == "loss" else result  # type: ignore


def a_slow_backward_arrives_late(rank: int, ranks: int) -> None:
    """The rank whose backward is slow is the last one that arrives, by as much as it is slow."""
    Slow.seconds = 0.06 if rank == 1 else 0.0
    for place, buckets in (("between", False), ("loss", False), ("between", True)):
        ddp = DistributedDataParallel(SlowBackward(place), bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with recording(rank, ranks) as tape:
            handle = trace(ddp, optimizer, buckets=buckets)
            for _ in range(8):
                dist.barrier()
                ddp(torch.ones(4, 12)).sum().backward()
                optimizer.step()
            handle.detach()
        reductions = [span for span in tape.spans() if span.op == "all_reduce"]
        last = {span.step: span for span in reductions}
        mine = torch.tensor([[span.start, span.end, span.seq] for span in last.values()])
        every = [torch.zeros_like(mine) for _ in range(ranks)]
        dist.all_gather(every, mine)
        assert torch.equal(every[0][:, 2], every[1][:, 2]), (place, buckets)
        late = (every[1][:, 0] - every[0][:, 0]).double().median() / 1e6
        assert 50 < late < 90, (place, buckets, late)
        waited = (every[0][:, 1] - every[0][:, 0]).double().median() / 1e6
        assert waited > 50, (place, buckets, waited)
        assert len(mine) == 8, (place, buckets)


def spans_have_the_shape_of_the_contract(rank: int, ranks: int) -> None:
    """Phases nest and tile, one all-reduce a synchronised backward, broadcasts come from rank 0."""
    tapes = {}
    for case in (
        Case(),
        Case(accumulate=2),
        Case(buckets=True),
        Case(model=Branches, find_unused=True),
    ):
        _, tape = train(replace(case, steps=6), rank, ranks)
        tapes[case] = tape
        spans = tape.spans()
        by_id = {span.id: span for span in spans}
        steps = [span for span in spans if span.kind == "step"]
        assert [span.step for span in steps] == list(range(len(steps)))
        for before, after in itertools.pairwise(steps):
            assert 0 <= after.start - before.end < 100_000_000
        for span in spans:
            if span.kind not in ("step", "gc") and span.parent:
                parent = by_id[span.parent]
                assert parent.start <= span.start
                assert span.end <= parent.end or span.lane != parent.lane
                assert span.step == parent.step
                assert not span.error
        parents = {(span.name, by_id[span.parent].name) for span in spans if span.parent}
        assert {("data_wait", "train_step"), ("forward", "train_step")} <= parents
        assert {("backward", "train_step"), ("optimizer_step", "train_step")} <= parents
        assert ("all_reduce", "backward") in parents
        forwards = [span for span in spans if span.name == "forward"]
        assert len(forwards) == 6 * case.accumulate
        assert len([span for span in spans if span.name == "backward"]) == len(forwards)
        reductions = [span for span in spans if span.op == "all_reduce"]
        numbers = [span.seq for span in reductions]
        assert numbers == sorted({number for number in numbers if number})
        assert {span.group_size for span in reductions} == {ranks}
        assert {span.dtype for span in reductions} == {"float32"}
        [group] = tape.fact("group")
        assert group["ranks"] == list(range(ranks))
        assert {span.group for span in reductions} == {group["id"]}
        if case.buckets:
            assert len(reductions) >= 6
            assert len(tape.chunks) <= 3  # the training thread's and those of gloo's two threads
        else:
            assert len(reductions) == 6
            size = sum(p.numel() * 4 for p in case.model().parameters())
            assert {span.nbytes for span in reductions} == {size}
            for span in reductions:
                assert span.attributes.get("launch_ns", span.start) <= span.start
            assert reductions[-1].attributes["buckets"] >= 1
        broadcasts = [span for span in spans if span.op == "broadcast"]
        if case.model is network:
            synchronised = 6 * case.accumulate - (6 * (case.accumulate - 1))
            assert len(broadcasts) == synchronised
            assert {span.peer for span in broadcasts} == {0}
            assert {by_id[span.parent].name for span in broadcasts} == {"forward"}
    micro_steps = [s.micro_step for s in tapes[Case(accumulate=2)].spans() if s.name == "backward"]
    assert micro_steps == [0, 1] * 6
    plain = {span.micro_step for span in tapes[Case()].spans()}
    assert plain == {None}


def look(tape: Tape, seen: list[list[str]]) -> None:
    seen.append(tape.open_spans())


def a_rank_that_waits_shows_it(rank: int, ranks: int) -> None:
    """While a rank hangs before the all-reduce, the others' open spans say what they wait for."""
    for buckets in (False, True):
        ddp = DistributedDataParallel(network(batch_norm=False))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        seen: list[list[str]] = []
        with recording(rank, ranks) as tape:
            handle = trace(ddp, optimizer, buckets=buckets)
            for step in range(6):
                loss = ddp(torch.ones(4, 12)).sum()
                watcher = threading.Timer(0.5, look, (tape, seen))
                if step == 5:
                    time.sleep(1 if rank == 1 else 0)
                    watcher.start()
                loss.backward()
                optimizer.step()
                watcher.cancel()
            handle.detach()
        if rank == 0:
            assert sorted(seen[0]) == ["all_reduce", "backward", "train_step"], (buckets, seen)


def a_model_wrapped_after_trace_is_found(rank: int, ranks: int) -> None:
    """trace() of the inner model sees the DDP object around it from the next step on."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with recording(rank, ranks) as tape:
        handle = trace(model, optimizer)
        ddp = DistributedDataParallel(model)
        for _ in range(4):
            ddp(torch.ones(4, 12)).sum().backward()
            optimizer.step()
        handle.detach()
    spans = tape.spans()
    assert len([span for span in spans if span.name == "forward"]) == 4
    assert len([span for span in spans if span.op == "all_reduce"]) == 3
    assert len([span for span in spans if span.op == "broadcast"]) == 3


def all_behaviours(rank: int, ranks: int) -> None:
    spans_have_the_shape_of_the_contract(rank, ranks)
    a_slow_backward_arrives_late(rank, ranks)
    a_rank_that_waits_shows_it(rank, ranks)
    a_model_wrapped_after_trace_is_found(rank, ranks)
