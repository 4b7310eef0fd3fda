"""What it costs to see one call of torch.distributed, by each of the places where it can be seen.

A group of one rank with gloo reduces 4 KB: nobody is waited for. What counts is the CPU time of the
calling thread, so that how long gloo's own threads sleep does not. Blocks of calls with and without
a source take turns, and the difference of their medians counts. The Flight Recorder is switched on
before a group exists, so it stands against a run without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import tracekit
from benchmarks.rows import Row, main
from tracekit.adapters.torch import trace

RANKS = 1
CALLS = 100
ENTRIES = 2000


def blocking(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def waited(tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()


def with_future(tensor: torch.Tensor) -> None:
    """As ``waited``, with a callback in Python that the backend calls from a thread of its own."""
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.get_future().add_done_callback(lambda _: None)
    work.wait()


def by_operator(tensor: torch.Tensor) -> None:
    group = dist.group.WORLD
    assert group is not None
    functional.wait_tensor(functional.all_reduce(tensor, "sum", group))


def block(call: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> float:
    """Microseconds of a call, on the CPU."""
    begun = thread_time_ns()
    for _ in range(CALLS):
        call(tensor)
    return (thread_time_ns() - begun) / CALLS / 1000


def rank_main(blocks: int) -> None:
    """What one rank does; rank 0 prints the differences as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor = torch.zeros(1000)
    tracekit.start(dir=tempfile.mkdtemp(), agent=False)
    kinds: dict[str, Callable[[torch.Tensor], None]] = {
        "blocking": blocking, "waited": waited, "by_operator": by_operator,
    }  # fmt: skip
    times: dict[tuple[str, bool], list[float]] = {}
    for number in range(2 * blocks):
        traced = number % 2 == 1
        handle = trace(torch.nn.Linear(1, 1)) if traced else None
        for name, call in kinds.items():
            block(call, tensor)
            times.setdefault((name, traced), []).append(block(call, tensor))
        if handle is not None:
            handle.detach()
        else:
            times.setdefault(("future", True), []).append(block(with_future, tensor))
    found: dict[str, Any] = {
        name: median(times[name, True]) - median(times[name, False]) for name in kinds
    }
    found["future"] = median(times["future", True]) - median(times["waited", False])
    found["plain"] = median(times["blocking", False])
    if os.environ.get("TORCH_FR_BUFFER_SIZE"):
        begun = perf_counter_ns()
        torch._C._distributed_c10d._dump_fr_trace_json()  # type: ignore[attr-defined]
        found["dump_ms"] = (perf_counter_ns() - begun) / 1e6
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def launch(blocks: int, **environment: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **environment, "OMP_NUM_THREADS": "1", "TRACEKIT_DIR": folder}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(RANKS), "-m", "benchmarks.communication"]
        done = subprocess.run(
            [*command, "--rank-blocks", str(blocks)],
            env=env,
            cwd=Path(__file__).resolve().parents[1],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def communication(long: bool) -> Iterator[Row]:
    """Microseconds that each source adds to a call."""
    blocks = 200 if long else 40
    off = launch(blocks)
    on = launch(blocks, TORCH_FR_BUFFER_SIZE=str(ENTRIES))
    plain = off["plain"]
    for what, added in (
        ("recorded, blocking: one span", off["blocking"]),
        ("recorded, async and waited for: two spans", off["waited"]),
        ("recorded, functional and waited for: two spans", off["by_operator"]),
        ("a callback on the future, that does nothing", off["future"]),
        ("the Flight Recorder's ring", on["plain"] - plain),
    ):
        yield Row(f"{what}, more than an all_reduce of {plain:.0f} us", f"{added:.1f} us")
    yield Row(f"a JSON dump of the ring ({ENTRIES:,} entries)", f"{on['dump_ms']:.0f} ms")


if __name__ == "__main__":
    if "--rank-blocks" in sys.argv:
        rank_main(int(sys.argv[-1]))
    else:
        main(communication, __doc__)
