"""A small gloo job that hangs on purpose and dumps its Flight Recorder: one process a rank.

    python hangs.py KIND FOLDER RANK WORLD_SIZE PORT

Each rank dumps twice, some time apart, as pickles and as JSON, and leaves.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

RECORDER: Any = _distributed_c10d


def dump(folder: Path, rank: int) -> None:
    for look in ("first", "second"):
        time.sleep(4.0)
        for kind in ("pickle", "json"):
            place = folder / kind / look
            place.mkdir(parents=True, exist_ok=True)
            data = RECORDER._dump_fr_trace() if kind == "pickle" else RECORDER._dump_fr_trace_json()
            (place / f"dump_rank_{rank}").write_bytes(data)
    os._exit(0)


def train(kind: str, rank: int) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(8))
    if kind == "missing" and rank == 1:
        forget_to_call()
    elif kind == "order" and rank == 1:
        dist.broadcast(torch.ones(8), 0)
        dist.all_reduce(torch.ones(8))
    elif kind == "size" and rank == 1:
        dist.all_reduce(torch.ones(4096))
    elif kind == "killed" and rank == 1:
        os.kill(os.getpid(), 9)
    elif kind == "healthy":
        pass
    else:
        dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(8), 0)


def forget_to_call() -> None:
    time.sleep(60)


def main(kind: str, folder: str, rank: str, world: str, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=int(rank), world_size=int(world))
    threading.Thread(target=dump, args=(Path(folder), int(rank)), daemon=True).start()
    try:
        train(kind, int(rank))
    except RuntimeError as error:
        print(rank, error)
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
