"""Small gloo jobs that hang on purpose, all at once: each is a run of tracekit with three ranks.

    python hangs.py FOLDER KIND …

PyTorch is imported once, every rank is a fork. A rank says that it hangs with a file
``FOLDER/KIND.<rank>.hangs``; when there is a file ``FOLDER/look-<n>`` it dumps its Flight Recorder
into ``FOLDER/KIND/{pickle,json}/look-<n>``. All end when stdin does.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import torch
import torch._dynamo  # what an optimizer imports: once, not in every rank
import torch.distributed as dist
from torch._C import _distributed_c10d

import tracekit
from tracekit.adapters.torch import trace

RECORDER: Any = _distributed_c10d
RANKS = 3
GUILTY = 1
STEPS = 5
STANDS_NS = 1_500_000_000
"""How long a call has to be open before it is dumped: what is younger may be work."""


class Rank:
    """One rank of one job."""

    def __init__(self, folder: Path, kind: str, rank: int) -> None:
        self.folder, self.kind, self.rank = folder, kind, rank
        self.is_guilty = rank == GUILTY and kind != "healthy"

    def run(self) -> None:
        torch.set_num_threads(1)
        tracekit.start(
            run=self.kind, dir=str(self.folder), rank=self.rank, world_size=RANKS, stall_s=2.0
        )
        store = f"file://{self.folder}/{self.kind}.store"
        dist.init_process_group("gloo", init_method=store, rank=self.rank, world_size=RANKS)
        threading.Thread(target=self.look, daemon=True).start()
        try:
            self.train()
        except RuntimeError as error:
            print(self.kind, self.rank, error, file=sys.stderr)
        self.hangs()
        time.sleep(600)

    def train(self) -> None:
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trace(model, optimizer=optimizer)
        steps = STEPS - (self.kind == "uneven" and self.is_guilty)
        for step in range(steps):
            model(torch.ones(4, 8)).sum().backward()
            if step == STEPS - 1 and self.is_guilty:
                self.go_wrong(model)
            elif step == STEPS - 1:
                dist.all_reduce(torch.ones(8))
                dist.broadcast(torch.ones(8), 0)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()

    def go_wrong(self, model: torch.nn.Module) -> None:
        if self.kind == "missing":
            self.hangs()
            forget_to_call()
        elif self.kind == "order":
            dist.broadcast(torch.ones(8), 0)
            dist.all_reduce(torch.ones(8))
        elif self.kind == "size":
            dist.all_reduce(torch.ones(4096))
        elif self.kind == "save":
            self.hangs()
            torch.save(model.state_dict(), cast(Any, SlowDisk()))
        elif self.kind == "killed":
            self.hangs()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stopped":
            self.hangs()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "gil":
            hold_the_lock(os.pipe()[0], self.hangs)

    # What it says and dumps

    def hangs(self) -> None:
        (self.folder / f"{self.kind}.{self.rank}.hangs").touch()

    def look(self) -> None:
        """Say that a call has been open for a while, and dump when asked."""
        while not self.stands():
            time.sleep(0.1)
        self.hangs()
        for number in (1, 2):
            while not (self.folder / f"look-{number}").exists():
                time.sleep(0.1)
            for format_ in ("pickle", "json"):
                place = self.folder / f"{self.kind}.dumps" / format_ / f"look-{number}"
                place.mkdir(parents=True, exist_ok=True)
                dump = getattr(RECORDER, "_dump_fr_trace" + ("_json" if format_ == "json" else ""))
                scratch = place / f".dump_rank_{self.rank}"
                scratch.write_bytes(dump())
                scratch.rename(place / scratch.name[1:])

    def stands(self) -> bool:
        """Whether it is in a call for long, or does what keeps it from one."""
        if (self.folder / f"{self.kind}.{self.rank}.hangs").exists():
            return True
        entries = pickle.loads(RECORDER._dump_fr_trace(True, False, False)).get("entries")
        if not entries or entries[-1]["retired"]:
            return False
        return bool(time.time_ns() - entries[-1]["time_created_ns"] > STANDS_NS)


def forget_to_call() -> None:
    while True:
        time.sleep(0.1)


def hold_the_lock(pipe: int, before: Any) -> None:
    read, buffer = ctypes.PyDLL(None).read, ctypes.create_string_buffer(1)
    before()
    read(pipe, buffer, 1)


class SlowDisk(io.RawIOBase):
    """Takes for ever to write."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        while True:
            time.sleep(0.1)


def main(folder: Path, kinds: list[str]) -> None:
    ranks = []
    for kind in kinds:
        for rank in range(RANKS):
            pid = os.fork()
            if not pid:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the parent
                try:
                    Rank(folder, kind, rank).run()
                finally:
                    os._exit(1)
            ranks.append(pid)
    sys.stdin.read()
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
