"""How fast profiles of TensorFlow are read, and how much memory that takes at two sizes.

The file is the recorded one of the tests with its events repeated, each time a little later.
"""

from __future__ import annotations

import lzma
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row, main
from tracekit.adapters.xplane._profile import read_profile
from tracekit.adapters.xplane._rows import Owner, span_rows
from tracekit.adapters.xplane._space import open_space
from tracekit.adapters.xplane._steps import Step
from tracekit.adapters.xplane._wire import fields

RECORDED = Path(__file__).parents[1] / "tests/adapters/xplane/data/worker-0.xplane.pb.xz"
LATER_PS = 80_000_000_000
HOST = b"\x12\x09/host:CPU"


def encoded(value: int) -> bytes:
    """A number as a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(field: int, data: bytes) -> bytes:
    """A field with its length."""
    return encoded(field << 3 | 2) + encoded(len(data)) + data


def make(path: Path, megabytes: float) -> None:
    """Write a profile of about that size."""
    recorded = lzma.decompress(RECORDED.read_bytes())
    times = round(megabytes * 1e6 / len(recorded))
    with open(path, "wb") as file:
        for number, start, end in fields(recorded, 0, len(recorded)):
            inner = recorded[start:end]
            if number == 1 and HOST in inner[:40]:
                parts = [(n, inner[s:e]) for n, s, e in fields(inner, 0, len(inner)) if e]
                inner = b"".join(block(n, _longer(p, times) if n == 3 else p) for n, p in parts)
            file.write(block(number, inner))


def _longer(line: bytes, times: int) -> bytes:
    """A line with its events many times over, each time a little later."""
    head, events = bytearray(), list[tuple[int, int, bytes]]()
    for number, start, end in fields(line, 0, len(line)):
        if number != 4:
            value = encoded(number << 3) + encoded(start)
            head += block(number, line[start:end]) if end else value
            continue
        numbers = {n: v for n, v, until in fields(line, start, end) if not until}
        stats = [block(4, line[s:e]) for n, s, e in fields(line, start, end) if n == 4 and e]
        duration = encoded(3 << 3) + encoded(numbers.get(3, 0))
        events.append((numbers.get(1, 0), numbers.get(2, 0), duration + b"".join(stats)))
    return bytes(head) + b"".join(
        block(4, b"\x08" + encoded(id_) + b"\x10" + encoded(at + turn * LATER_PS) + rest)
        for turn in range(times)
        for id_, at, rest in events
    )


def read(path: Path) -> Row:
    """Read a profile into rows and say what it took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    with open_space(path) as space:
        profile = read_profile(space)
        marks = sorted(profile.marked, key=lambda mark: mark.start_ns)
        steps = [Step(place, m.start_ns, m.end_ns) for place, m in enumerate(marks)]
        rows = span_rows(profile, steps, Owner("run", 0, 0, 2))
    took = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    size = path.stat().st_size / 1e6
    return Row(
        f"TensorFlow profile, {size:.0f} MB, {profile.events:,} events to {len(rows):,} spans",
        f"{size / took:.0f} MB/s a core, {before / 1024:.0f} MiB + {grown:.0f} MiB,"
        " the mapped file among them",
    )


def profiles(long: bool) -> Iterator[Row]:
    """Each step in a process of its own: what a process once needed, those it starts count too."""
    alone = multiprocessing.get_context("spawn").Pool
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.xplane.pb")
        for megabytes in (12, 96, 960) if long else (12, 96):
            with alone(1, maxtasksperchild=1) as pool:
                pool.apply(make, (path, megabytes))
                yield pool.apply(read, (path,))


if __name__ == "__main__":
    main(profiles, __doc__)
