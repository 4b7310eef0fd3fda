"""What tracing costs a training by DDP, whose collectives are made in C++: two ways of asking.

One process, pinned to one core, trains a model of 100 buckets; blocks of 50 steps with ``trace()``
and with everything put back take turns, the order in each pair by chance.

Accounting: each place where the adapter stands stands between two readings of the thread's CPU
time, and so does what it calls on; what is between the two is its own. What the same places take
without tracing is taken off, and from the hooks what hooks that do nothing show between the same
readings. Of each place the median over the steps of a block counts, and of blocks that stand side
by side the difference. The training itself empties the caches between two places. The step takes
45 ms on a quiet core; the share is that of the step itself, since a neighbour who takes caches and
memory makes both slower. Beside it a floor: functions in the same places that only call on.

A/B: before and after each step a small model without DDP, never traced, takes a step: a core whose
neighbour comes and goes is half as fast from one second to the next, and the two steps tell how
fast it is. A block is judged by the median of its steps in units of these, and by the CPU time of
the process likewise (``turns.py``). Times are told at the median speed.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from time import perf_counter, process_time, thread_time_ns
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from benchmarks.one_rank import one_rank
from benchmarks.rows import Row, main
from benchmarks.turns import changes, interval, take_turns
from tracekit.adapters.torch import trace

BUCKETS = 100
BLOCK = 50
WARM_UP = 14
"""Steps before each block that do not count: what was just attached still looks for the buckets,
which a training does for two of 128 steps."""
PLACES = ("data", "forward", "backward", "optimizer")


class Training:
    """A DDP model of one rank whose step takes some tens of milliseconds on one core."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layers = [torch.nn.Linear(192, 192) for _ in range(BUCKETS)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*self.layers), bucket_cap_mb=0.14)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        samples = torch.randn(128 * (WARM_UP + BLOCK), 192)
        self.loader = DataLoader(TensorDataset(samples), batch_size=128)

    def steps(self, how: str) -> Iterator[list[int]]:
        """Train a block traced, plain, or with the floor's functions.

        After each step: the CPU time before and after each of its places.
        """
        handle = trace(self.model, self.optimizer, self.loader) if how == "traced" else None
        batches, hooks = iter(self.loader), []
        places: list[Callable[..., Any]]
        places = [next, self.model, torch.Tensor.backward, self.optimizer.step]
        if how == "floor":
            places = [_only_calls_on(place) for place in places]
            ends = self.layers[0].weight, self.layers[-1].weight
            hooks = [end.register_post_accumulate_grad_hook(_nothing) for end in ends]
        take, model, backward, update = places
        for _ in range(WARM_UP + BLOCK):
            times = [thread_time_ns()]
            (batch,) = take(batches)
            times.append(thread_time_ns())
            result = model(batch)
            times.append(thread_time_ns())
            loss = result.square().mean()
            times.append(thread_time_ns())
            backward(loss)
            times.append(thread_time_ns())
            update()
            times.append(thread_time_ns())
            self.optimizer.zero_grad()
            yield times
        for hook in hooks:
            hook.remove()
        if handle is not None:
            handle.detach()


def _only_calls_on(call: Callable[..., Any]) -> Callable[..., Any]:
    def calls_on(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return calls_on


def _nothing(_: object) -> None:
    return None


class Inside:
    """The time that a step spends in what the adapter calls on, and in the hooks on gradients."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)

    def timed(self, place: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = thread_time_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[place] += thread_time_ns() - began

        return timed

    def watch(self) -> ExitStack:
        """Time what DDP, autograd, the optimizer and the loader do, until the stack is closed."""
        places = ExitStack()
        hook: Any = torch.Tensor.register_post_accumulate_grad_hook
        for owner, name, new in (
            (DistributedDataParallel, "__call__", self._of(DistributedDataParallel, "__call__", 1)),
            (torch.autograd, "backward", self._of(torch.autograd, "backward", 2)),
            (torch.optim.SGD, "step", self._of(torch.optim.SGD, "step", 3)),
            (_SingleProcessDataLoaderIter, "_next_data",
             self._of(_SingleProcessDataLoaderIter, "_next_data", 0)),
            (torch.Tensor, "register_post_accumulate_grad_hook",
             lambda tensor, ours: hook(tensor, self.timed("hooks", ours))),
        ):  # fmt: skip
            places.enter_context(patch.object(owner, name, new))
        return places

    def _of(self, owner: Any, name: str, place: int) -> Callable[..., Any]:
        return self.timed(PLACES[place], getattr(owner, name))


def accounting(rounds: int) -> Iterator[Row]:
    """Time that the training's thread spends inside tracekit, as a share of its step."""
    inside = Inside()
    hows = ("traced", "floor", "plain")
    with inside.watch():
        training = Training()

        def block(how: str) -> dict[str, float]:
            """Of each place the time around what it calls on: the median of a block's steps."""
            own: dict[str, list[int]] = defaultdict(list)
            for number, t in enumerate(training.steps(how)):
                spent = inside.spent.copy()
                inside.spent.clear()
                if number >= WARM_UP:
                    around = (t[1] - t[0], t[2] - t[1], t[4] - t[3], t[5] - t[4])
                    for place, time in zip(PLACES, around, strict=True):
                        own[place].append(time - spent[place])
                    own["hooks"].append(spent["hooks"])
                    own["step"].append(t[5] - t[0])
            return {place: median(times) / 1000 for place, times in own.items()}

        orders = [random.sample(hows, 3) for _ in range(rounds + 1)]
        turns = [{how: block(how) for how in order} for order in orders][1:]
    step = median(turn["plain"]["step"] for turn in turns)
    for how, what in (
        ("traced", "inside tracekit"),
        ("floor", "functions that only call on, in the same places"),
    ):
        costs = [
            {place: turn[how][place] - turn["plain"][place] for place in PLACES} for turn in turns
        ]
        for cost, turn in zip(costs, turns, strict=True):
            # Without tracing there are no hooks; those that do nothing show what readings cost.
            cost["hooks"] = turn[how]["hooks"] - turn["floor"]["hooks"]
        shares = [
            sum(cost.values()) / turn["plain"]["step"]
            for cost, turn in zip(costs, turns, strict=True)
        ]
        share, (low, high) = median(shares), interval(shares)
        typical = {place: median(cost[place] for cost in costs) for place in costs[0]}
        parts = ", ".join(f"{place} {cost:.0f}" for place, cost in typical.items())
        yield Row(
            f"{what}, a step of DDP with {BUCKETS} buckets, {step / 1000:.0f} ms of CPU",
            f"{share * step:.0f} us: {share:.2%}, {low:.2%} to {high:.2%} ({parts})",
            "<= 0.5 %" if how == "traced" else "",
            share <= 0.005 if how == "traced" else None,
        )


class Compared:
    """Blocks of a training, each step beside two of a small model that is never traced."""

    def __init__(self) -> None:
        self._training = Training()
        self._small = torch.nn.Sequential(*(torch.nn.Linear(192, 192) for _ in range(BUCKETS // 3)))
        self._parameters = list(self._small.parameters())
        self._samples = torch.randn(128, 192)
        self._usual: tuple[float, float] | None = None
        """Wall and CPU time that the small model's two steps take; those of the first block."""

    def _reference(self) -> tuple[float, float]:
        began = perf_counter(), process_time()
        # Not by backward(): that is traced, whatever model it is of.
        torch.autograd.grad(self._small(self._samples).square().mean(), self._parameters)
        return perf_counter() - began[0], process_time() - began[1]

    def block(self, traced: bool) -> tuple[float, float]:
        """Median wall time and CPU time of a step, in milliseconds at the usual speed."""
        steps: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []
        before = began = 0.0, 0.0
        for number, _ in enumerate(self._training.steps("traced" if traced else "plain")):
            ended = perf_counter(), process_time()
            after = self._reference()
            if number >= WARM_UP:
                steps.append((ended[0] - began[0], ended[1] - began[1]))
                beside.append((before[0] + after[0], before[1] + after[1]))
            before, began = after, (perf_counter(), process_time())
        if self._usual is None:
            self._usual = median(wall for wall, _ in beside), median(cpu for _, cpu in beside)
        ratios = [
            median(
                step[clock] / reference[clock]
                for step, reference in zip(steps, beside, strict=True)
            )
            for clock in (0, 1)
        ]
        return ratios[0] * self._usual[0] * 1000, ratios[1] * self._usual[1] * 1000


def benchmark(long: bool) -> Iterator[Row]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with one_rank():
        yield from accounting(20 if long else 5)
        blocks = take_turns(Compared().block, 160 if long else 10)
        yield from changes(blocks, BLOCK, "DDP")


if __name__ == "__main__":
    main(benchmark, __doc__)
