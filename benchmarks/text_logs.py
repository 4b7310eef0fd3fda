"""How fast text logs are read, and in how much memory.

A training's log of 8 ranks, one whose lines are all of other words, and both with every line read
in full: MB/s of one core. 20 MB, or with ``--long`` 100.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row, main
from tracekit.adapters.text_logs import read_logs

RANKS = 8


def training(ranks: int) -> Iterator[str]:
    """Lines of a training, all ranks in one file."""
    chance = random.Random(1)
    for step in range(10**9):
        minute, second = divmod(step, 60)
        for rank in range(ranks):
            yield (
                f"[rank{rank}]: 2026-03-04 {10 + minute // 60 % 12:02d}:{minute % 60:02d}:"
                f"{second:02d},{chance.randrange(1000):03d} INFO trainer step {step} loss"
                f" {chance.uniform(1, 4):.4f} lr {chance.uniform(1, 9):.2f}e-05 tokens/s"
                f" {chance.randrange(10_000, 99_999)} mem {chance.uniform(10, 70):.1f} GB\n"
            )


def prose(ranks: int) -> Iterator[str]:
    """Lines of which none has the words of another."""
    chance = random.Random(2)
    words = ["model", "shard", "read", "written", "epoch", "cache", "worker", "loader", "token"]
    for number in range(10**9):
        rank = number % ranks
        text = " ".join(chance.choice(words) for _ in range(12))
        yield f"[rank{rank}]: 2026-03-04 10:00:{number % 60:02d},000 INFO {text}\n"


def write(path: Path, lines: Iterator[str], megabytes: int) -> int:
    """Write so many of the lines; returns the bytes."""
    written = 0
    with path.open("w") as file:
        while written < megabytes * 1_000_000:
            written += file.write("".join(next(lines) for _ in range(1000)))
    return written


def logs(long: bool) -> Iterator[Row]:
    """Both kinds of log, at a glance as users read them and in full."""
    megabytes = 100 if long else 20
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("of a training", training), ("of other words", prose)):
            for glance in (True, False):
                path = Path(folder, "job.log")
                size = write(path, lines(RANKS), megabytes if glance else megabytes // 5)
                begin = time.process_time()
                read_logs([path], "run", glance=glance)
                speed = size / 1e6 / (time.process_time() - begin)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                barred = glance and lines is training
                yield Row(
                    f"text log {name}, {size / 1e6:.0f} MB{'' if glance else ', read in full'}",
                    f"{speed:.1f} MB/s a core, {peak:.0f} MiB",
                    ">= 20 MB/s" if barred else "",
                    speed >= 20 if barred else None,
                )


if __name__ == "__main__":
    main(logs, __doc__)
