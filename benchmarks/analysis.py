"""What an analysis costs: whole processes, from opening the run to the last byte of JSON.

The run is synthetic: 64 ranks, 40 collectives a step, 45 spans a rank and step. Speed is by the
wall clock on all cores; whether the cost of a span grows with the run is judged by CPU time, which
a neighbour cannot double.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.rows import Row, main
from tracekit.testing import write_big_run

RANKS = 64
SPANS_A_STEP = RANKS * 45


@dataclass(frozen=True)
class Cost:
    """Of one analysis: seconds by both clocks, and the most memory it had."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def analyze(run_dir: Path) -> Cost:
    """Analyze a run in a process of its own."""
    command = [sys.executable, "-m", "tracekit", "analyze", str(run_dir), "--format", "json"]
    begun = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    verdict = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = perf_counter() - begun
    assert process.returncode == 0, f"analyze ended with {process.returncode}"
    assert verdict["run"]["world_size"] == RANKS
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def cost_of(folder: Path, steps: int, repeats: int) -> Cost:
    """The least cost of analyzing a run of so many steps."""
    run_dir = folder / f"run-{steps}"
    write_big_run(run_dir / "spans", steps=steps, ranks=RANKS)
    costs = [analyze(run_dir) for _ in range(repeats)]
    shutil.rmtree(run_dir)
    return Cost(
        min(cost.wall_s for cost in costs),
        min(cost.cpu_s for cost in costs),
        max(cost.peak_mib for cost in costs),
    )


def benchmark(long: bool) -> Iterator[Row]:
    folder = Path(tempfile.mkdtemp(prefix="tracekit-bench-"))
    cores = len(os.sched_getaffinity(0))
    try:
        spans = 1_000 * SPANS_A_STEP
        cost = cost_of(folder, 1_000, 5 if long else 3)
        speed = spans / cost.wall_s / 1e6
        yield Row(
            f"analysis of {spans / 1e6:.1f} M spans, whole process, {cores} cores",
            f"{cost.wall_s:.1f} s: {speed:.2f} M spans/s; CPU {cost.cpu_s:.1f} s,"
            f" {cost.peak_mib:.0f} MiB",
            ">= 1.5 M spans/s",
            speed >= 1.5,
        )
        sizes = [2e6, 10e6, *([50e6] if long else [])]
        steps = [round(size / SPANS_A_STEP) for size in sizes]
        costs = [cost_of(folder, count, 3 if size < 20e6 else 1)
                 for count, size in zip(steps, sizes, strict=True)]  # fmt: skip
        each = [c.cpu_s / (s * SPANS_A_STEP) * 1e6 for c, s in zip(costs, steps, strict=True)]
        change = each[-1] / each[0] - 1
        yield Row(
            " / ".join(f"{size / 1e6:.0f}" for size in sizes) + " M spans, CPU a span",
            " / ".join(f"{micros:.2f}" for micros in each) + f" us: {change:+.0%}",
            "<= +15 %",
            change <= 0.15,
        )
        yield Row(
            f"peak memory at {sizes[-1] / 1e6:.0f} M spans",
            f"{costs[-1].peak_mib:.0f} MiB",
            "<= 1,500 MiB at 50 M",
            costs[-1].peak_mib <= 1_500,
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(benchmark, __doc__)
