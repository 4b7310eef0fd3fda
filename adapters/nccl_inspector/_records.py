"""From the lines of one file to records: every release of the format, whatever is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

__all__ = ["Counts", "Header", "Record", "operations", "read_records"]

_LONGEST = 1 << 20


@lru_cache(maxsize=1)
def operations() -> Mapping[str, Any]:
    """All of ``operations.json``."""
    text = files(__package__).joinpath("operations.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@dataclass(frozen=True, slots=True)
class Header:
    """Whose record it is."""

    comm: str
    """The communicator's hash, hexadecimal without zeros in front."""
    rank: int
    """In the communicator."""
    size: int
    nodes: int | None
    name: str | None
    host: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Record:
    """A collective that one rank completed."""

    header: Header
    line: int
    op: str
    number: int
    """Its number among those of this operation in the communicator."""
    nbytes: int
    """As told: of one rank's part, where ranks have parts."""
    took_us: float
    begin_us: int | None
    """When its first kernel began, by the host's clock, where a trace tells."""
    algorithm: str | None


@dataclass(slots=True)
class Counts:
    """What a file holds."""

    records: int = 0
    messages: int = 0
    """Sends and receives."""
    dropped: int = 0
    """Records that the plug-in overwrote before it wrote them, of all communicators."""
    by_host: int = 0
    """Records whose time is the host's call, which says nothing of the network."""
    unusable: int = 0
    first_unusable: str | None = None
    versions: set[str] = field(default_factory=set)
    _dropped: dict[str, int] = field(default_factory=dict)

    def bad(self, line: int, why: str) -> None:
        """Count a line that cannot be used."""
        self.unusable += 1
        self.first_unusable = self.first_unusable or f"line {line}: {why}"

    def drop(self, comm: str, total: int) -> None:
        """Take a communicator's running count of what was overwritten."""
        self._dropped[comm] = max(total, self._dropped.get(comm, 0))
        self.dropped = sum(self._dropped.values())


def read_records(path: Path, counts: Counts) -> Iterator[Record]:
    """The collectives in a file. Raises ``OSError``.

    Up to format 4.2 a record says whose it is; from 4.3 on the marker before a batch does.
    """
    context: Header | None = None
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(_LONGEST):
            number += 1
            if not line.strip(b"\0 \t\r\n"):
                continue
            try:
                told = orjson.loads(line)
            except orjson.JSONDecodeError:
                context = None if line.endswith(b"\n") else context
                counts.bad(number, "no JSON, or cut off")
                continue
            if not isinstance(told, dict):
                counts.bad(number, "no record")
                continue
            if "header" in told:
                context = _header(told)
                if context is None:
                    counts.bad(number, "a header that says too little")
                    continue
                counts.versions.add(context.version)
            stats = told.get("dump_stats")
            if isinstance(stats, dict) and context is not None:
                counts.drop(context.comm, _whole(stats.get("coll_dropped_total")) or 0)
            counts.messages += "p2p_perf" in told
            body = told.get("coll_perf")
            if not isinstance(body, dict):
                continue
            if context is None:
                counts.bad(number, "a record of which nothing tells whose it is")
                continue
            record = _record(context, number, body, counts)
            if record is not None:
                counts.records += 1
                yield record


def _header(told: Mapping[str, Any]) -> Header | None:
    header, about = told["header"], told.get("metadata")
    if not isinstance(header, dict) or not isinstance(about, dict):
        return None
    rank, size, pid = (
        _whole(v) for v in (header.get("rank"), header.get("n_ranks"), about.get("pid"))
    )
    if rank is None or size is None or not 0 <= rank < size:
        return None
    name = header.get("comm_name")
    return Header(
        str(header.get("id"))[:40].removeprefix("0x").lstrip("0") or "0", rank, size,
        _whole(header.get("nnodes")),
        str(name)[:80] if name and name != "unknown" else None,
        str(about.get("hostname") or "")[:255], pid or 0,
        str(about.get("inspector_output_format_version") or "")[:20],
    )  # fmt: skip


def _record(
    header: Header, line: int, body: Mapping[str, Any], counts: Counts
) -> Record | None:  # fmt: skip
    op, number, nbytes = (
        body.get("coll"),
        _whole(body.get("coll_sn")),
        body.get("coll_msg_size_bytes"),
    )
    took = body.get("coll_exec_time_us")
    if not isinstance(op, str) or number is None or _whole(nbytes) is None:
        counts.bad(line, "a record without operation, number or size")
        return None
    if not isinstance(took, (int, float)) or isinstance(took, bool) or not 0 < took < 1e15:
        counts.bad(line, "a record without a time")
        return None
    source = body.get("coll_timing_source")
    if source is not None and source not in operations()["device_times"]:
        counts.by_host += 1
        return None
    algorithm = body.get("coll_algo")
    return Record(
        header, line, op, number, int(nbytes or 0), float(took), _begin(body),
        str(algorithm)[:40] if algorithm and algorithm != "unknown" else None,
    )  # fmt: skip


def _begin(body: Mapping[str, Any]) -> int | None:
    trace = body.get("event_trace_ts")
    events = trace.get("kernel_events") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        return None
    begins = [
        begin for one in events
        if isinstance(one, dict) and (begin := _whole(one.get("kernel_start_ts")))
    ]  # fmt: skip
    return min(begins, default=None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
