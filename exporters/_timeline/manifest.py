"""What tells Perfetto how traces of ranks stand to each other: a ``perfetto_manifest``.

The format is that of google/perfetto, ``docs/reference/perfetto-manifest.md`` and, as it is read,
``src/trace_processor/plugins/perfetto_manifest/perfetto_manifest_reader.cc`` (``ParseClocks``,
``ApplyManifest``). ``offset_ns`` there: at one instant this file's clock reads T when that of
``sync_to`` reads T + ``offset_ns``, so a positive one moves the file to the right.

The traces name no clock, so each has a timeline of its own, and ``clocks`` without the name of
a clock relates these. A trace without ``clocks`` is put where its own times say
(``BridgeToTraceTime`` in ``src/trace_processor/importers/common/clock_tracker.cc``): Unix time
as its host had it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tracekit.exporters._timeline.timeline import Process, Timeline

__all__ = ["MANIFEST", "manifest", "member"]

MANIFEST = "perfetto_manifest.json"


def member(process: Process) -> str:
    """The name of a rank's trace."""
    return f"rank-{process.rank:05d}.pftrace"


def manifest(timeline: Timeline) -> bytes:
    """The manifest of the traces of a timeline's ranks, as JSON.

    Ranks of one clock domain are tied to the first of it. Between two domains, or where a rank
    said nothing of its clock, nobody measured anything, so nothing ties them, and ``attributes``
    lists the traces of which that is so.
    """
    machines = _machines(timeline.processes)
    first: dict[str, str] = {}
    files = []
    for process in timeline.processes:
        name = member(process)
        entry: dict[str, Any] = {"path": name, "machine": {"name": machines[process.rank]}}
        if process.clock in first:
            entry["clocks"] = {"sync_to": {"file": first[process.clock]}, "offset_ns": 0}
        elif process.clock:
            first[process.clock] = name
        files.append(entry)
    attributes: dict[str, Any] = {"tracekit.attempt": timeline.attempt}
    unknown = [entry["path"] for entry in files if "clocks" not in entry][1:]
    if unknown:
        attributes["tracekit.unknown_offset"] = ", ".join(unknown)
    content = {"version": 1, "attributes": attributes, "files": files}
    return json.dumps({"perfetto_manifest": content}, indent=1, ensure_ascii=False).encode()


def _machines(processes: Iterable[Process]) -> dict[int, str]:
    """A name for the machine of each rank; two that are called the same are told apart."""
    clocks: dict[str, list[str]] = {}
    names = {}
    for process in processes:
        host = process.host or "unknown host"
        known = clocks.setdefault(host, [])
        if process.clock not in known:
            known.append(process.clock)
        number = known.index(process.clock)
        names[process.rank] = f"{host} ({number + 1})" if number else host
    return names
