"""A process that forks others and kills them at random moments; run it, do not import it.

    python -m tests.dataset.killing convert RUN_DIR KILLS SEED    converters of what lies in a run
    python -m tests.dataset.killing record RUN_DIR KILLS SEED     ranks

It prints how the converters ended, or how many spans the ranks had recorded for certain. It loads
everything once, so a kill costs milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.dataset.ranks import journals, recording
from tracekit import recorder
from tracekit.dataset import compact, conversion, convert, drop_covered_segments, finalize
from tracekit.errors import InputError


def forked(work: Callable[[], None]) -> int:
    """Start work in a process of its own; its exit code is 0 when it got to its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def killed_after(pid: int, seconds: float) -> int:
    """Kill a process unless it ended before; returns what ``waitpid`` says."""
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def convert_all(run_dir: Path) -> None:
    """Convert in small bites, now and then compact, at last finish everything."""
    conversion._BATCH_ROWS = 700
    for reader in journals(run_dir):
        convert(reader, run_dir)
        drop_covered_segments(reader, run_dir)
        with contextlib.suppress(InputError):
            compact(run_dir)
    for reader in journals(run_dir):
        finalize(reader, run_dir)


def record_and_vouch(run_dir: Path, number: int, pipe: int) -> None:
    """Record as fast as it goes; what was recorded is vouched for through the pipe."""
    with recording(run_dir, number, process=f"00c0ffee-{number}", segment_bytes=64 << 10):
        plain = recorder.span_type("plain").complete
        done = 0
        while True:
            with recorder.span("outer", x=done, text="some text", odd=[done]):
                for start in range(done, done + 99):
                    plain(start, start + 1)
            recorder.event("seen", done)
            done += 100
            os.write(pipe, struct.pack("q", done))


def main() -> None:
    what, run_dir, kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    chance = random.Random(seed)
    results = []
    for number in range(kills):
        if what == "convert":
            pid = forked(lambda: convert_all(run_dir))
            results.append(killed_after(pid, chance.uniform(0, 0.06)))
            continue
        reading, writing = os.pipe()
        pid = forked(lambda: record_and_vouch(run_dir, number, writing))  # noqa: B023
        os.close(writing)
        last = os.read(reading, 8)  # it runs now
        killed_after(pid, chance.uniform(0, 0.03))
        while more := os.read(reading, 8):
            last = more
        os.close(reading)
        results.append(struct.unpack("q", last)[0])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
