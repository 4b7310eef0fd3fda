"""What the demo trains: an ordinary DDP script, one process a rank, with a fault on demand.

Start it as any other: ``torchrun --nproc-per-node 4 worker.py --steps 60 --fault forward:2``.

How long a fault lasts is a share of the healthy step. All ranks measure that alike, in a rehearsal
that is not traced, with the same data, model and number of processes. Compute faults burn that
much CPU time, data and checkpoint faults sleep. Checkpoint and gc come every few steps and last
as many times as long, so that every fault costs the same on the average.
"""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

WIDTH, DEPTH, CLASSES, TOKENS, BATCH = 256, 4, 10, 4, 192
REHEARSAL = 14
SETTLED = 6
Sample = tuple[torch.Tensor, torch.Tensor]


class Faults:
    """What is wrong with this rank: seconds by kind, and where in the run it is."""

    def __init__(self, kinds: set[str], every: int, stop_at: int) -> None:
        self.kinds = kinds
        self.every = every
        self.stop_at = stop_at
        self.step = -1
        self.seconds: dict[str, float] = {}
        self.heap: list[Any] = []

    def arm(self, seconds: float) -> None:
        """From now on the faults happen and last this long a step."""
        self.seconds = dict.fromkeys(self.kinds, seconds)
        if "gc" in self.kinds:
            self.heap = cycles_that_take(seconds * self.every)

    def burn(self, kind: str) -> None:
        if kind in self.seconds:
            burn(self.seconds[kind])

    def sleep(self, kind: str) -> None:
        if kind in self.seconds:
            time.sleep(self.seconds[kind])

    def strikes(self, kind: str) -> bool:
        """Whether a fault that ends the run happens in this step."""
        return kind in self.seconds and self.step == self.stop_at

    def between_steps(self, model: nn.Module) -> None:
        """What a rank does now and then: save, or collect garbage."""
        if (self.step + 1) % self.every:
            return
        if "checkpoint" in self.seconds:
            save_slowly(model, self.seconds["checkpoint"] * self.every)
        if "gc" in self.seconds:
            gc.collect()


def burn(seconds: float) -> None:
    """Compute for so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def wait_for_nothing(rank: int, step: int) -> None:
    """A rank that never gets to its next collective."""
    print(f"rank {rank} stops in step {step}", flush=True)
    while True:
        time.sleep(0.1)


class SlowBackward(torch.autograd.Function):
    """The identity, whose gradient takes its time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, faults: Faults) -> torch.Tensor:
        ctx.faults = faults
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.faults.burn("backward")
        return gradients[0], None


slow_backward: Callable[[torch.Tensor, Faults], torch.Tensor] = SlowBackward.apply


class Trouble(nn.Module):
    """A layer without parameters: where this rank's forward and backward go wrong."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        faults = self.faults
        faults.burn("forward")
        if faults.strikes("hang"):
            wait_for_nothing(dist.get_rank(), faults.step)
        if faults.strikes("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        return slow_backward(x, faults) if "backward" in faults.seconds else x


class Optimizer(torch.optim.SGD):
    """SGD that may be slow."""

    def __init__(self, model: nn.Module, faults: Faults) -> None:
        super().__init__(model.parameters(), lr=0.01, momentum=0.9)
        self.faults = faults

    def step(self, closure: Any = None) -> Any:
        self.faults.burn("optimizer")
        return super().step(closure)


class Samples(Dataset[Sample]):
    """Random samples, the same on every machine."""

    def __init__(self, length: int) -> None:
        random = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(512, TOKENS, WIDTH, generator=random)
        self.labels = torch.randint(CLASSES, (512, TOKENS), generator=random)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return self.inputs[index % 512], self.labels[index % 512]


class SlowDisk(io.FileIO):
    """A new file that takes so many seconds a byte."""

    def __init__(self, path: str, seconds_per_byte: float) -> None:
        super().__init__(path, "x")
        self.seconds_per_byte = seconds_per_byte

    def write(self, data: Any) -> int:
        time.sleep(len(data) * self.seconds_per_byte)
        return super().write(data)


def save_slowly(model: nn.Module, seconds: float) -> None:
    """Save a checkpoint to a disk that needs so long for it."""
    state = model.state_dict()
    size = sum(value.numel() * value.element_size() for value in state.values())
    with (
        tempfile.TemporaryDirectory() as folder,
        SlowDisk(f"{folder}/checkpoint.pt", seconds / size) as file,
    ):
        torch.save(state, file)


def cycles_that_take(seconds: float) -> list[Any]:
    """Reference cycles in use, as many as a collection needs so much CPU time to walk through."""
    heap: list[Any] = []
    count = 20_000
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        for _ in range(count):
            cycle: list[Any] = []
            cycle.append((cycle,))
            heap.append(cycle)
        begin = time.thread_time()
        gc.collect()
        took = time.thread_time() - begin
        if took >= 0.95 * seconds:
            gc.enable()
            return heap
        count = max(5_000, min(int(len(heap) * (seconds / took - 1)), 2 * len(heap)))


def build(batchnorm: bool, faults: Faults) -> nn.Module:
    """The model: the trouble sits in the middle, so that some gradients are ready before it."""
    layers: list[nn.Module] = [nn.Flatten(0, 1)]
    for depth in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), *([nn.BatchNorm1d(WIDTH)] * batchnorm), nn.ReLU()]
        if depth == DEPTH // 2 - 1:
            layers.append(Trouble(faults))
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def train(
    steps: int,
    batchnorm: bool,
    faults: Faults,
    attach: Callable[[nn.Module, torch.optim.Optimizer, DataLoader[Sample]], object] | None = None,
) -> list[float]:
    """Train a fresh model; returns when each step ended."""

    def collate(samples: list[Sample]) -> Any:
        faults.sleep("data")
        return default_collate(samples)

    rank, world = dist.get_rank(), dist.get_world_size()
    samples = Samples(steps * BATCH * world)
    loader = DataLoader(samples, BATCH, sampler=DistributedSampler(samples), collate_fn=collate)
    torch.manual_seed(1)
    model = DistributedDataParallel(build(batchnorm, faults))
    optimizer = Optimizer(model, faults)
    loss_of = nn.CrossEntropyLoss()
    if attach is not None:
        attach(model, optimizer, loader)
    ends: list[float] = []
    for step, (inputs, labels) in enumerate(loader):
        faults.step = step
        optimizer.zero_grad()
        loss_of(model(inputs), labels.flatten()).backward()
        optimizer.step()
        faults.between_steps(model)
        ends.append(time.monotonic())
        if attach is not None and rank == 0 and (step + 1) % 5 == 0:
            print(f"step {step + 1} of {steps}", flush=True)
    return ends


def main() -> None:
    """Rehearse, then train under tracekit."""
    import tracekit
    from tracekit.adapters.torch import trace

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fault", action="append", default=[], metavar="KIND:RANK")
    parser.add_argument("--size", type=float, default=0.4, help="of the healthy step, per step")
    parser.add_argument("--every", type=int, default=4, help="steps between checkpoints or gc")
    parser.add_argument("--no-batchnorm", dest="batchnorm", action="store_false")
    options = parser.parse_args()

    tracekit.start(stall_s=2)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kinds = {kind for kind, _, who in (f.partition(":") for f in options.fault) if who == str(rank)}
    faults = Faults(kinds, options.every, stop_at=options.steps * 2 // 3)

    ends = train(REHEARSAL, options.batchnorm, faults)[SETTLED:]
    healthy = statistics.median(b - a for a, b in itertools.pairwise(ends))
    faults.arm(healthy * options.size)
    tracekit.fact("demo", {"healthy_step_ms": healthy * 1e3, "faults": options.fault})

    def attach(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Sample]
    ) -> object:
        return trace(model, optimizer=optimizer, loader=loader)

    train(options.steps, options.batchnorm, faults, attach)
    dist.destroy_process_group()
    gc.freeze()  # a quick exit: what is left need not be collected


if __name__ == "__main__":
    main()
