"""A training of six steps on gloo that fails in the way it is told to: failing_job.py FAULT."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def load(fault: str, rank: int) -> None:
    """Trouble of one rank's own, or none."""
    if fault == "raise" and rank == 2:
        raise ValueError("bad sample 17")
    if fault == "memory" and rank == 1:
        raise MemoryError("cannot allocate 10 GiB")
    if fault == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "sleep" and rank == 2:
        time.sleep(60)
    if fault == "save" and rank == 0:
        print("saving the checkpoint", flush=True)
        time.sleep(60)


def synchronize(fault: str, rank: int) -> None:
    """What all ranks do together, or should."""
    if fault == "barrier":
        if rank == 1:
            time.sleep(6)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
    elif fault == "order" and rank == 3:
        dist.broadcast(torch.ones(8), 0)
    elif fault == "size" and rank == 3:
        dist.all_reduce(torch.ones(16))
    else:
        dist.all_reduce(torch.ones(8))


def main(fault: str) -> None:
    """Train; the fault comes in step 3."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=2))
    rank = dist.get_rank()
    dist.barrier()  # however long the others take to start
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=4), dist.group.WORLD)
    for step in range(6):
        now = fault if step == 3 else ""
        load(now, rank)
        synchronize(now, rank)
        print(f"step {step} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
