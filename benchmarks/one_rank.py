"""A process that is a group of one rank and records into a folder of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

import tracekit

__all__ = ["one_rank"]


@contextmanager
def one_rank() -> Iterator[None]:
    """Record and communicate by gloo, on one thread, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        tracekit.start(run="bench", dir=folder, rank=0, world_size=1, agent=False)
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()
            tracekit.stop()
