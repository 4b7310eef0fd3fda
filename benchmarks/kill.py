"""A thousand SIGKILLs at random moments: is what was acknowledged there, and there once?

A victim records and acknowledges its spans through a pipe until it is killed: in the middle of a
record, while segments are made and sealed without a pause, or while a second process turns its
journal into Parquet and is killed too. Then the run is opened as the analysis opens it. Without
slots that a kill tore, nothing would have been tested: fifty in a thousand must be met.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.rows import Row, main
from tests.kill.victims import MOMENTS, Outcome, kill_one


def one(folder: Path, number: int) -> Outcome:
    place, chance = folder / str(number), random.Random(number)
    (moment,) = chance.choices(MOMENTS, (6, 2, 2))
    outcome = kill_one(place, moment, chance)
    if outcome.wrong:
        print(f"kill {number}: {'; '.join(outcome.wrong)}; kept in {place}", file=sys.stderr)
    else:
        shutil.rmtree(place)
    return outcome


def benchmark(long: bool) -> Iterator[Row]:
    kills = 1_000 if long else 60
    folder = Path(tempfile.mkdtemp(prefix="tracekit-kill-"))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = list(pool.map(lambda number: one(folder, number), range(kills)))
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    torn = sum(outcome.torn > 0 for outcome in outcomes)
    spans = sum(outcome.acknowledged for outcome in outcomes)
    yield Row(
        f"{kills:,} SIGKILLs, {spans:,} acknowledged spans",
        "each there, once" if not wrong else f"{wrong} kills lost or doubled spans",
        "each there, once",
        not wrong,
    )
    yield Row(
        "kills that met a torn slot",
        f"{torn} of {kills:,}",
        ">= 50 of 1,000",
        torn >= kills / 20,
    )
    if not wrong:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(benchmark, __doc__)
