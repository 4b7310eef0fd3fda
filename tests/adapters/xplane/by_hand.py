"""The shares of a profile's steps summed by hand: protobuf's own reader, and a grid of instants.

Nothing of the importer is used. An instant is communication when a collective runs and no
operation does, compute when one does, data when only the input is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

GRID_NS = 1000
_FIELDS = {
    "XSpace": [("planes", 1, "XPlane", True)],
    "XPlane": [
        ("name", 2, "string", False),
        ("lines", 3, "XLine", True),
        ("event_metadata", 4, "Entry", True),
        ("stat_metadata", 5, "Entry", True),
        ("stats", 6, "XStat", True),
    ],
    "Entry": [("key", 1, "int64", False), ("value", 2, "Named", False)],
    "Named": [("name", 2, "string", False)],
    "XLine": [
        ("name", 2, "string", False),
        ("timestamp_ns", 3, "int64", False),
        ("events", 4, "XEvent", True),
    ],
    "XEvent": [
        ("metadata_id", 1, "int64", False),
        ("offset_ps", 2, "int64", False),
        ("duration_ps", 3, "int64", False),
    ],
    "XStat": [("metadata_id", 1, "int64", False), ("uint64_value", 3, "uint64", False)],
}


def _classes() -> dict[str, Any]:
    types = descriptor_pb2.FieldDescriptorProto
    plain = {"string": types.TYPE_STRING, "int64": types.TYPE_INT64, "uint64": types.TYPE_UINT64}
    file = descriptor_pb2.FileDescriptorProto(name="byhand.proto", package="byhand")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, many in fields:
            label = types.LABEL_REPEATED if many else types.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            added.type = plain.get(kind, types.TYPE_MESSAGE)
            if kind not in plain:
                added.type_name = f".byhand.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName("byhand.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(found[name]) for name in _FIELDS}


def intervals(data: bytes) -> dict[str, list[tuple[int, int]]]:
    """When collectives ran, operations ran and input was waited for: Unix nanoseconds."""
    space = _classes()["XSpace"].FromString(data)
    start = 0
    for plane in space.planes:
        names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for stat in plane.stats:
            if names[stat.metadata_id] == "profile_start_time":
                start = stat.uint64_value
    found: dict[str, list[tuple[int, int]]] = {"comm": [], "compute": [], "data": []}
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        for line in plane.lines:
            for event in line.events:
                kind = _kind(names[event.metadata_id])
                at = start + line.timestamp_ns + event.offset_ps // 1000
                if kind == "compute" and line.name.startswith("tf_data"):
                    continue  # these prepare input
                if kind:
                    found[kind].append((at, at + event.duration_ps // 1000))
    return found


def _kind(name: str) -> str | None:
    if ":Collective" in name:
        return "comm"
    if name.startswith("IteratorGetNext"):
        return "data"
    parts = name.split(":")
    waits = ("RemoteCall", "PartitionedCall", "MultiDevice", "Iterator", "_Send", "_Recv")
    if len(parts) == 2 and " " not in name and not any(wait in parts[1] for wait in waits):
        return "compute"
    return None


def shares(data: bytes, steps: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    """The shares of communication that nothing hides, compute and data in these steps."""
    found = intervals(data)
    sums = dict.fromkeys(("comm", "compute", "data"), 0.0)
    whole = 0
    for _, start, end in steps:
        grid = {kind: np.zeros((end - start) // GRID_NS, bool) for kind in found}
        for kind, many in found.items():
            for first, last in many:
                grid[kind][max(0, first - start) // GRID_NS : max(0, last - start) // GRID_NS] = 1
        whole += len(grid["comm"])
        sums["compute"] += grid["compute"].sum()
        sums["comm"] += (grid["comm"] & ~grid["compute"]).sum()
        sums["data"] += (grid["data"] & ~grid["comm"] & ~grid["compute"]).sum()
    return {kind: float(value) / whole for kind, value in sums.items()}
