"""How fast text logs are read, and in how much memory.

    python benchmarks/text_logs.py [--mb 100] [--ranks 8]

Prints MB/s of one core for a training's log, for one whose lines are all of other words, and for
both with every line read in full.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tracekit.adapters.text_logs import read_logs


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("a training", training), ("other words", prose)):
            for glance in (True, False):
                path = Path(folder, "job.log")
                size = write(path, lines(asked.ranks), asked.mb if glance else asked.mb // 5)
                begin = time.process_time()
                read_logs([path], "run", glance=glance)
                took = time.process_time() - begin
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                how = "at a glance" if glance else "in full"
                print(f"{name}, {how}: {size / 1e6 / took:.1f} MB/s a core, {peak:.0f} MiB")


if __name__ == "__main__":
    main()
