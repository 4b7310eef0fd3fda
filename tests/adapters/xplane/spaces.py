"""Profiles made by hand, byte by byte, and the recorded one."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).parent / "data"
START_NS = 1_800_000_000_000_000_000
MS = 1_000_000


def recorded(folder: Path, workers: Sequence[int] = (0, 1)) -> Path:
    """A log directory with the recorded profile of these workers."""
    for worker in workers:
        inner = folder / f"worker-{worker}" / "plugins" / "profile" / "2026_11_29_23_05_07"
        inner.mkdir(parents=True)
        packed = (DATA / f"worker-{worker}.xplane.pb.xz").read_bytes()
        (inner / "node-a.xplane.pb").write_bytes(lzma.decompress(packed))
    return folder


def recorded_bytes(worker: int = 0) -> bytes:
    """The recorded profile of one worker."""
    return lzma.decompress((DATA / f"worker-{worker}.xplane.pb.xz").read_bytes())


def marks(worker: int) -> list[tuple[int, int, int]]:
    """Number, start and end of the recorded steps, by the worker's own clock."""
    loaded = json.loads((DATA / f"marks-{worker}.json").read_bytes())
    return [(number, start, end) for number, start, end in loaded]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


@dataclass(frozen=True)
class Event:
    """An event; times in nanoseconds from the start of its line."""

    name: str
    start: int
    length: int
    stats: Mapping[str, int | str] = field(default_factory=dict)


def plane(name: str, lines: Mapping[str, Sequence[Event]], start_ns: int = 0) -> bytes:
    """A plane as XSpace holds it; its lines begin at ``start_ns``."""
    events: dict[str, int] = {}
    stats: dict[str, int] = {}
    body = block(2, name)
    for title, inside in lines.items():
        line = block(2, title) + number(3, start_ns)
        for event in inside:
            id_ = events.setdefault(event.name, len(events) + 1)
            one = number(1, id_) + number(2, event.start * 1000) + number(3, event.length * 1000)
            for stat, value in event.stats.items():
                key = number(1, stats.setdefault(stat, len(stats) + 1))
                told = number(4, value) if isinstance(value, int) else block(5, value)
                one += block(4, key + told)
            line += block(4, one)
        body += block(3, line)
    for into, names in ((4, events), (5, stats)):
        for key_name, id_ in names.items():
            body += block(into, number(1, id_) + block(2, number(1, id_) + block(2, key_name)))
    return block(1, body)


def task(start_ns: int = START_NS) -> bytes:
    """The plane that says when the session began."""
    names = block(5, number(1, 1) + block(2, number(1, 1) + block(2, "profile_start_time")))
    body = block(2, "Task Environment") + names + block(6, number(1, 1) + number(3, start_ns))
    return block(1, body)


def space(*planes: bytes, host: str = "node-a") -> bytes:
    return b"".join(planes) + task() + block(4, host)


def step(number: int, start: int, length: int) -> Event:
    return Event("train", start, length, {"step_num": number, "_r": 1})


def reduce(start: int, length: int, instance: int, name: str = "CollectiveReduceV2") -> Event:
    stats = {"instance_key": instance, "group_key": 1, "step_id": 7, "collective": 0}
    return Event(f"{name}:{name}", start, length, stats)


def group(size: int, start: int = 0) -> Event:
    stats = {"group_key": 1, "group_size": size}
    return Event("CollectiveExecutor::CompleteParams", start, 10, stats)


def worker(
    rank: int,
    arrive: Sequence[int] = (4, 14),
    size: int = 2,
    length: int = 10,
    first: int = 0,
    data: int = 1,
) -> bytes:
    """A worker of a training: input (``data`` ms), forward, backward, all-reduce, optimizer. It
    comes to the all-reduce at ``arrive`` (ms) and all leave at the eighth ms of a step."""
    python, ops, comm = list[Event](), list[Event](), [group(size)]
    prepared = list[Event]()
    for place, came in enumerate(arrive):
        at = place * length * MS
        python.append(step(first + place, at, length * MS))
        begin = at + data * MS
        python.append(Event("IteratorGetNextOp::DoCompute", at, data * MS))
        prepared.append(Event("normalize/Mul:Mul", at, data * MS))
        middle = begin + MS // 2
        ops.append(Event("dense/MatMul:MatMul", begin, middle - begin))
        ops.append(Event("gradient_tape/dense/MatMul:MatMul", middle, came * MS - middle))
        comm.append(reduce(came * MS, at + 8 * MS - came * MS, 100 + place))
        ops.append(Event("SGD/update_0/mul:Mul", at + 8 * MS, 1 * MS))
    told = {"device": f"/job:worker/replica:0/task:{rank}/device:CPU:0"}
    python.append(Event("RemoteCallOp", 0, 10, told))
    lines = {"python": python, "tf_Compute/1": ops, "collective_ops/1": comm}
    lines["tf_data_private_threadpool/1"] = prepared
    return space(plane("/host:CPU", lines), host="node-a")
