"""What it takes to read the dumps of a large job: time and memory of the whole command.

1,024 ranks in groups of 8 and of 128, 2,000 entries each with stacks of 13 frames; rank 341 misses
the last call. `tracekit analyze` runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, main

RANKS, ENTRIES, ABSENT = 1024, 2000, 341
BEGIN = 1_790_000_000_000_000_000
OPS = (
    ("nccl:_all_gather_base", [4096, 5120], "BFloat16"),
    ("nccl:_reduce_scatter_base", [8192, 5120], "BFloat16"),
    ("nccl:all_reduce", [120], "Float"),
)
FRAMES = [
    {"name": f"call{i}", "filename": f"/opt/lib/site-packages/torch/m{i}.py", "line": i}
    for i in range(12)
] + [{"name": "train", "filename": "/home/user/train.py", "line": 77}]


def dump(rank: int) -> dict[str, Any]:
    """The dump of one rank."""
    members = {
        "0": ("default_pg", range(RANKS)),
        str(1 + rank // 8): ("TENSOR", range(rank // 8 * 8, rank // 8 * 8 + 8)),
        str(1000 + rank % 8): ("DATA", range(rank % 8, RANKS, 8)),
    }
    names = [(name, desc) for name, (desc, _) in members.items()]
    numbers, entries = [10_000, 50_000, 20_000], []
    for i in range(ENTRIES - (rank == ABSENT)):
        group = 0 if i % 50 == 49 else 1 + i % 2
        numbers[group] += 1
        name, shape, dtype = OPS[i % 3]
        done, at = i < ENTRIES - 1, BEGIN + i * 10_000_000
        entries.append(
            {
                "frames": FRAMES, "record_id": 90_000 + i, "pg_id": group,
                "process_group": names[group], "collective_seq_id": numbers[group],
                "p2p_seq_id": 0, "op_id": numbers[group], "profiling_name": name,
                "time_created_ns": at, "duration_ms": 1.25 if done else None,
                "input_sizes": [shape], "input_dtypes": [dtype], "output_sizes": [shape],
                "output_dtypes": [dtype], "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": at + 5 if done else None,
                "time_discovered_completed_ns": at + 9 if done else None, "retired": done,
                "timeout_ms": 600_000, "is_p2p": False, "thread_name": "pt_autograd_4",
            }
        )  # fmt: skip
    config = {
        name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
        for name, (desc, ranks) in members.items()
    }
    return {"version": "2.10", "pg_config": config, "entries": entries}


def rows(long: bool) -> Iterator[Row]:
    """The table's rows."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            path = Path(folder, f"nccl_trace_rank_{rank}")
            path.write_bytes(pickle.dumps(dump(rank), 2))
            os.utime(path, ns=(BEGIN, BEGIN + 10**12))
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        began = time.perf_counter()
        command = [sys.executable, "-m", "tracekit", "analyze", folder, "--format", "json"]
        told = subprocess.run(command, capture_output=True, check=True)
        seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, cpu = used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
    ranks = [finding["ranks"] for finding in json.loads(told.stdout)["findings"]]
    right = ranks == [[ABSENT]]
    measured = f"{seconds:.1f} s, CPU {cpu:.1f} s, {peak:.0f} MiB, {'right' if right else ranks}"
    yield Row(
        f"{RANKS:,} dumps of {ENTRIES:,} entries with stacks, {size:.0f} MB, whole process",
        measured,
        "≤ 15 s, ≤ 200 MiB",
        right and seconds <= 15 and peak <= 200,
    )


if __name__ == "__main__":
    main(rows, __doc__)
