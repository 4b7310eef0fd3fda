"""What PyTorch remembers of its last collectives, taken from inside a job that is stuck.

Nothing is imported here: the module is asked by the journal's thread of a job that hangs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["LARGEST_RING", "NotTaken", "take_ring"]

LARGEST_RING = 4096
"""Calls that a ring may hold: the dump of 2,000 holds the interpreter's lock for 20 to 30 ms."""
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_SYMBOLS = "torch._inductor.codecache"
"""PyTorch needs it to name the frames of a stack, and imports it: some 800 modules, a second."""


class NotTaken(Exception):
    """Why a ring is left alone, in words for people."""


def take_ring(stacks: bool, environ: Mapping[str, str] = os.environ) -> bytes | None:
    """A dump of the ring as a pickle; None where there is no process group.

    Without stacks where naming their frames would import what the job has not. The rings of
    devices are left alone: to ask them is to ask the device about every open call, which spoils a
    graph that another thread captures. PyTorch writes those itself when its watchdog gives up.

    Raises ``NotTaken``, and what PyTorch raises.
    """
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    names = {str(told[0]).lower() for told in list(getattr(world, "pg_map", {}).values())}
    if not names:
        return None
    if not names <= {"gloo", "cpu:gloo"}:
        raise NotTaken(f"PyTorch's own dumps tell of them ({', '.join(sorted(names))})")
    size = max(
        (int(environ[name]) for name in _SIZES if environ.get(name, "").isdigit()), default=0
    )
    if size > LARGEST_RING:
        raise NotTaken(f"{size} calls are too many to be dumped while the job runs")
    dump: Any = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace", None)
    if dump is None:
        raise NotTaken("this version of PyTorch does not record the calls of gloo")
    return bytes(dump(True, stacks and _SYMBOLS in sys.modules, False))
