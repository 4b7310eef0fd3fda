"""How the golden files of a version of the journal are made: once, when the version is new.

    python tests/journal/golden/make.py tests/journal/golden/v1

A process records what the format can hold and is killed in the middle; another stops in order.
What is read from their files is written beside them, to be looked through by a person before it
is committed. A version that was shipped is never made anew.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.journal.golden.tables import tables_of
from tracekit import recorder
from tracekit.journal import JournalWriter
from tracekit.model import Clock, Collective, group_id
from tracekit.recorder import Recorder

YEAR_2024 = 1_704_067_200_000_000_000


def record(folder: Path, rank: int) -> None:
    """Record one of everything."""
    identity = {
        "uid": "golden",
        "rank": rank,
        "world_size": 2,
        "attempt": 0,
        "host": "node-a",
        "boot_id": "00000000-golden",
        "clock_offset_ns": YEAR_2024 - time.monotonic_ns(),
        "clock_domain": "00000000-golden:time:[1]",
    }
    stem = f"rank-{rank:05d}.00c0ffee-{100 + rank}"
    writer = JournalWriter(folder, stem, identity, segment_bytes=64 << 10)
    made = Recorder(writer, rank, 2)
    writer.retire = made.retire_before
    recorder.install(made)
    group = group_id([0, 1])
    recorder.fact("group", {"id": group, "name": "default", "ranks": [0, 1]})
    recorder.fact("versions", {"torch": "2.13", "ünï": ["cödé", None, 1.5]})
    reduce = recorder.span_type(
        "all_reduce", "comm", Collective("all_reduce", group, 2, "float32"), lane=f"group:{group}"
    )
    broadcast = recorder.span_type(
        "broadcast", "comm", Collective("broadcast", group, 2, "int64", peer=0)
    )
    kernel = recorder.span_type("gemm", "kernel", lane="stream:cuda:0:7", clock=Clock.DEVICE)
    forward = recorder.span_type("forward", "forward")
    for step in range(4):
        made.begin_step(step)
        with recorder.span("data_wait", kind="data", batch=64, shard="a/b", lr=0.5, last=False):
            pass
        for micro in range(2):
            made.set_micro_step(micro)
            with forward:
                start = recorder.clock()
                kernel.complete(
                    start, start + 5, attributes={"launch_ns": start - 9, "device": "cuda:0"}
                )
        broadcast.complete(recorder.clock(), recorder.clock(), step, 128)
        token = reduce.begin(step, 4096)
        reduce.end(token, {"buckets": 3, "nested": {"sizes": [1, 2, 3]}, "none": None})
        recorder.event("loss", 1 / (step + 1), text="té" * 30 if step % 2 == 0 else None, step=step)
    try:
        with recorder.span("breaks", kind="user", big=1 << 70, tiny=1e-300, odd=float("inf")):
            raise KeyError
    except KeyError:
        pass
    if rank == 0:
        made.close()
        return
    made.begin_step(4)
    with forward:
        reduce.begin(4, 4096)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Make the files and what is read from them."""
    target = Path(sys.argv[1])
    target.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for rank in (0, 1):
            subprocess.run([sys.executable, __file__, "--record", scratch, str(rank)], check=False)
        for path in sorted(folder.iterdir()):
            with gzip.GzipFile(target / f"{path.name}.gz", "wb", mtime=0) as file:
                file.write(path.read_bytes())
        (target / "expected.jsonl").write_text(tables_of(folder))


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
