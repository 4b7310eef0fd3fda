"""From real processes to a run directory: what a user's script leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tracekit
from tracekit.adapters.torch import trace
from tracekit.dataset import open_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def train_without_a_launcher(rank: int, ranks: int, port: int, folder: str) -> None:
    """Nothing in the environment says the rank: the process group does."""
    torch.set_num_threads(1)
    tracekit.start(run="spawned", dir=folder, agent=False)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trace(model, optimizer)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.barrier()
    tracekit.stop()
    dist.destroy_process_group()


def free_port() -> int:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    return int(store.port)


def test_spawned_ranks_agree_on_one_run(tmp_path: Path) -> None:
    arguments = (2, free_port(), str(tmp_path))
    mp.spawn(train_without_a_launcher, arguments, nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    [folder] = tmp_path.iterdir()
    with open_run(folder) as run:
        assert run.ranks == (0, 1)
        assert run.world_size == 2
        spans = run.table("spans").to_pylist()
    reductions = [span for span in spans if span["collective_op"] == "all_reduce"]
    found = sorted((span["rank"], span["step"], span["collective_seq"]) for span in reductions)
    assert [(rank, step) for rank, step, _ in found] == [(r, s) for r in range(2) for s in range(3)]
    numbers = [seq for _, _, seq in found]  # the backend's own, which had other calls before
    assert numbers[:3] == numbers[3:] == sorted(set(numbers))


def test_the_example_leaves_a_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    script = str(ROOT / "examples" / "ddp_train.py")
    subprocess.run([*command, "2", script], check=True, cwd=ROOT, env=environment, timeout=300)
    with open_run(tmp_path / "ddp-train") as run:
        assert run.ranks == (0, 1)
        assert run.coverage.skipped == ()
        spans = run.table("spans").to_pylist()
        facts = {fact["name"] for fact in run.table("facts").to_pylist()}
    assert {"group", "rank", "versions", "environment", "model", "ddp", "batch_size"} <= facts
    for rank in range(2):
        names = [span["name"] for span in spans if span["rank"] == rank]
        for name in ("forward", "broadcast", "backward", "all_reduce", "optimizer_step"):
            assert names.count(name) == 128, name
        assert names.count("torch.save") == (2 if rank == 0 else 0)
    [launched] = {s["launch_ns"] <= s["start_ns"] for s in spans if s["launch_ns"] is not None}
    assert launched
