"""A training of one kind of parallelism on gloo, traced.

torchrun --nproc-per-node 2 parallel_train.py fsdp2 --steps 10
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import tracekit
from tracekit.adapters.torch import trace

WIDTH = 32
Work = Callable[[], None]


class Block(nn.Module):
    """Two layers, and whatever else a test wants to be done before them."""

    def __init__(self, before: Work | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.before = before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before is not None:
            self.before()
        return x + self.down(self.up(x).relu())  # type: ignore[no-any-return]


def blocks(count: int, before: Work | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(before) for _ in range(count)))


def busy(milliseconds: float) -> Work:
    """Work that takes so much time of a core."""

    def work() -> None:
        end = time.thread_time() + milliseconds / 1e3
        while time.thread_time() < end:
            sum(range(100))

    return work


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(4, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp2(options: argparse.Namespace) -> nn.Module:
    """Parameters sharded layer by layer; a late rank dawdles before each gather."""
    model = blocks(options.layers)
    optimizer = None
    if options.early:
        trace(model)
    for block in model:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace(model, optimizer)
    if dist.get_rank() == options.late:
        for block in model:
            block.register_forward_pre_hook(lambda *_: time.sleep(0.002), prepend=True)
    train(model, optimizer, options.steps)
    return model


def fsdp1(options: argparse.Namespace) -> nn.Module:
    model = blocks(options.layers)
    cpu = torch.device("cpu")
    for number, block in enumerate(model):
        model[number] = FullyShardedDataParallel(block, device_id=cpu, use_orig_params=True)
    whole = FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)
    trace(whole, optimizer)
    train(whole, optimizer, options.steps)
    return whole


def mesh(options: argparse.Namespace) -> nn.Module:
    """Two replicas of two ranks that share each layer."""
    work = busy(options.work) if dist.get_rank() == options.late else None
    model = blocks(options.layers, work)
    if options.early:
        trace(model)
    places = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for block in model:
        parallelize_module(
            block, places["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
        fully_shard(block, mesh=places["dp"])
    fully_shard(model, mesh=places["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace(model, optimizer)
    train(model, optimizer, options.steps)
    return model


def pipeline(options: argparse.Namespace) -> nn.Module:
    """Each rank a stage; the one that is late has more to do."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = blocks(options.layers, busy(options.work) if rank == options.late else None)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    kind = Schedule1F1B if options.early else ScheduleGPipe
    schedule = kind(stage, 4, loss_fn=lambda output, target: (output - target).pow(2).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace(model, optimizer)
    batch = torch.randn(16, WIDTH)
    for _ in range(options.steps):
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=torch.zeros(16, WIDTH))
        optimizer.step()
        optimizer.zero_grad()
    return model


def grid(options: argparse.Namespace) -> nn.Module:
    """Two stages of two replicas; a rank, or with ``early`` its whole stage, has more to do."""
    places = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    number = places["pp"].get_local_rank()
    late = options.late // 2 == number if options.early else options.late == dist.get_rank()
    model = blocks(options.layers, busy(options.work) if late else None)
    for block in model:
        fully_shard(block, mesh=places["dp"])
    fully_shard(model, mesh=places["dp"])
    cpu = torch.device("cpu")
    stage = PipelineStage(model, number, 2, cpu, group=places.get_group("pp"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, target: (out - target).pow(2).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace(model, optimizer)
    batch, target = torch.randn(16, WIDTH), torch.zeros(16, WIDTH)
    for _ in range(options.steps):
        schedule.step(batch) if number == 0 else schedule.step(target=target)
        optimizer.step()
        optimizer.zero_grad()
    return model


def looped(options: argparse.Namespace) -> nn.Module:
    """Each rank two stages that are not neighbours."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    work = busy(options.work) if rank == options.late else None
    models = [blocks(options.layers, work) for _ in range(2)]
    whole = nn.ModuleList(models)
    stages: list[Any] = [
        PipelineStage(model, rank + number * ranks, 2 * ranks, torch.device("cpu"))
        for number, model in enumerate(models)
    ]
    schedule = ScheduleInterleaved1F1B(
        stages, 4, loss_fn=lambda out, target: (out - target).pow(2).mean()
    )
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)
    trace(whole, optimizer)
    batch, target = torch.randn(16, WIDTH), torch.zeros(16, WIDTH)
    for _ in range(options.steps):
        schedule.step(batch) if rank == 0 else schedule.step(target=target)
        optimizer.step()
        optimizer.zero_grad()
    return whole


def digest(model: nn.Module) -> str:
    """A hash of every bit of the parameters that lie on this rank."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        found.update(local.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["fsdp1", "fsdp2", "mesh", "pipeline", "grid", "looped"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--late", type=int, default=-1)
    parser.add_argument("--work", type=float, default=0.0)
    parser.add_argument("--early", action="store_true")
    parser.add_argument("--role", action="store_true", help="Say the role oneself")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    role = {"dp": dist.get_rank(), "pp": 0} if options.role else None
    tracekit.start(run="parallel", agent=False, role=role)
    model = globals()[options.kind](options)
    print(f"parameters of {dist.get_rank()}: {digest(model)}", flush=True)
    dist.barrier()
    tracekit.stop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
