"""What is kept of one dump: where each group stands, what is not completed, the last few calls.

Differences between the versions of the format end here. A dump of 2,000 entries becomes some
kilobytes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.adapters.flight_recorder._fields import (
    LONGEST,
    MOST,
    Group,
    frame_of,
    groups_of,
    number_of,
    status_of,
    text_of,
)
from tracekit.adapters.flight_recorder._loading import Refused
from tracekit.adapters.flight_recorder._names import DTYPES, FREE_SIZES, OPERATIONS, bytes_of

__all__ = ["Call", "Dump", "Progress", "Signature", "Signatures", "reduce_dump"]

_LAST = 32
"""Calls of a group that are kept to be compared with those of other ranks."""
_SITES = 4
"""Calls of a group of which is kept where the code made them."""
_OPEN = 16
"""Calls of a group that are not completed and kept as they are; the oldest and the newest."""
_PAIR = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_SEQUENCES = (tuple, list)


@dataclass(slots=True)
class Call:
    """One entry that is not completed."""

    group: str
    """The name of its group in this dump."""
    seq: int | None
    op: str
    name: str
    created_ns: int
    started: bool
    retired: bool
    elements: int
    nbytes: int | None
    dtype: str | None
    pair: tuple[str, int, int] | None
    """send or recv, own number and the other's, both as the group counts its members."""
    frame: str | None
    timeout_ms: int | None
    sent: tuple[int, ...] | None
    """Of calls that exchange: how many numbers go to each member, or all of them as one."""
    received: tuple[int, ...] | None


@dataclass(slots=True)
class Progress:
    """How far one rank came in one group, by its entries."""

    enqueued: int | None = None
    """The last collective that it entered."""
    started: int | None = None
    completed: int | None = None
    backend: str = ""
    messages: bool = False
    """It sends and receives there, so the numbers of the group's status are of both."""
    opened: list[Call] = field(default_factory=list)
    more: int = 0
    """Open calls that were left out."""
    last: array[int] = field(default_factory=lambda: array("q"))
    """Number, signature and time of creation of its last collectives, the newest first."""
    sites: dict[int, str] = field(default_factory=dict)
    """Where the code made the newest of them, by number."""
    is_full: bool = False
    """Of its completed calls, no older one is needed."""


@dataclass(slots=True)
class Dump:
    """One file."""

    path: Path
    version: str
    library: str
    """The version of NCCL, where it is told."""
    backends: set[str]
    written_ns: int | None
    """When the file was written, if that can be when it was dumped."""
    entries: int
    first_ns: int | None
    newest_ns: int | None
    threads: set[str]
    groups: dict[str, Group]
    status: dict[str, tuple[int, int, int]]
    """By number of the group on this rank: last enqueued, started and completed."""
    names: dict[str, str]
    """Names of groups by their number on this rank, as far as entries tell."""
    progress: dict[str, Progress]
    whole: bool
    """It begins with the first call of the process."""
    odd: int
    """Entries that have another shape."""
    frame: str | None = None
    """Where the user's code made its newest call."""
    rank: int = -1
    host: str = ""


Signature = tuple[str, int, str | None]
"""What the parts of one collective must have in common: operation, numbers (-1: free), dtype."""


class Signatures:
    """Small numbers for signatures; 0: not to be compared."""

    def __init__(self) -> None:
        self.known: dict[Signature, int] = {}
        self.listed: list[Signature] = [("", -1, None)]

    def number(self, op: str, elements: int, dtype: str | None) -> int:
        """The number of a signature."""
        key = (op, elements, dtype)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.listed)
            self.listed.append(key)
        return found


def reduce_dump(path: Path, value: Any, signatures: Signatures) -> Dump:
    """Keep of a dump what a verdict needs; raises ``Refused`` for what is none."""
    top = {"entries": value} if isinstance(value, list) else value
    if not isinstance(top, Mapping):
        raise Refused("not a dump of Flight Recorder")
    entries = top.get("entries", [])
    known = [key for key in ("entries", "pg_status", "pg_config", "nccl_comm_state") if key in top]
    if not known or not isinstance(entries, list):
        raise Refused("not a dump of Flight Recorder")
    if isinstance(value, list) and not any(_is_entry(one) for one in entries[:8]):
        raise Refused("not a dump of Flight Recorder")
    dump = Dump(
        path,
        version=text_of(top.get("version")) or "1",
        library=text_of(top.get("nccl_version")) or text_of(top.get("comm_lib_version")),
        backends=set(),
        written_ns=None,
        entries=len(entries),
        first_ns=None,
        newest_ns=None,
        threads=set(),
        groups=groups_of(top.get("pg_config")),
        status=status_of(top.get("pg_status")),
        names={},
        progress={},
        whole=False,
        odd=0,
    )
    _scan(dump, entries, signatures)
    if entries and dump.odd == len(entries):
        raise Refused("none of its entries is one of Flight Recorder")
    dump.whole = _is_whole(entries)
    newest = entries[-1] if entries else None
    dump.frame = frame_of(newest.get("frames")) if isinstance(newest, dict) else None
    return dump


def _scan(dump: Dump, entries: list[Any], signatures: Signatures) -> None:
    """Look at entries from the newest back. Once enough of a group's calls are known, the older
    ones matter only where they are not completed."""
    known = dump.progress.get
    for entry in reversed(entries):
        if type(entry) is dict:
            told = entry.get("process_group")
            if type(told) in _SEQUENCES and told and type(told[0]) is str:
                progress = known(told[0])
                if progress is not None and progress.is_full and not entry.get("is_p2p"):
                    if entry.get("state") == "completed":
                        continue
                    if progress.backend == "gloo" and entry.get("retired"):
                        continue
        dump.odd += not _taken(dump, entry, signatures)
    for progress in dump.progress.values():
        progress.opened.reverse()
    times = [number_of(one.get("time_created_ns")) for one in entries[:1] if type(one) is dict]
    dump.first_ns = next((time for time in times if time is not None), dump.first_ns)


def _is_whole(entries: list[Any]) -> bool:
    """Whether nothing was overwritten or left out."""
    ends = [one.get("record_id") if isinstance(one, dict) else None for one in entries[:1]]
    ends += [one.get("record_id") if isinstance(one, dict) else None for one in entries[-1:]]
    return ends == [0, len(entries) - 1]


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and "profiling_name" in value


def _taken(dump: Dump, entry: Any, signatures: Signatures) -> bool:
    """Take an entry in, if it is one."""
    try:
        _take(dump, entry, signatures)
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    return True


def _take(dump: Dump, entry: dict[str, Any], signatures: Signatures) -> None:
    get = entry.get
    told = get("process_group")
    local = get("pg_id")
    group = told[0] if told else f"#{local}"
    name = entry["profiling_name"]
    if type(group) is not str or type(name) is not str or len(name) > LONGEST:
        raise ValueError
    progress = dump.progress.get(group)
    if progress is None:
        progress = dump.progress[group] = Progress()
        if group not in dump.groups:
            dump.groups[group] = (group[:LONGEST], text_of(told[1]) if told else "", ())
    if local is not None:
        dump.names[str(local)] = group
    created = get("time_created_ns")
    if created is None:
        created = get("time_created_us", 0) * 1000
    if not 0 <= created < MOST:
        raise ValueError
    dump.first_ns = created
    if dump.newest_ns is None:
        dump.threads.add(str(get("thread_id")))
    dump.newest_ns = max(created, dump.newest_ns or 0)
    backend, _, op = name.partition(":")
    if not op:
        backend, op = "", name
    dump.backends.add(backend)
    progress.backend = backend
    messages = get("is_p2p")
    if messages is None:
        messages = op.startswith(("send ", "recv "))
    state = get("state")
    if backend == "gloo":  # it records neither start nor end, but lets go of what has ended
        is_open = not get("retired")
    else:
        is_open = state != "completed" and not get("time_discovered_completed_ns")
    if messages:
        progress.messages = True
        seq = get("p2p_seq_id", get("seq_id"))
    else:
        seq = get("collective_seq_id", get("seq_id"))
        if type(seq) is not int or not 0 <= seq < MOST:
            raise ValueError
        if progress.enqueued is None or seq > progress.enqueued:
            progress.enqueued = seq
        if not is_open and backend != "gloo" and seq > (progress.completed or -1):
            progress.completed = seq
        if state == "started" and seq > (progress.started or -1):
            progress.started = seq
        if len(progress.sites) < _SITES and len(progress.last) < 3 * _SITES:
            frame = frame_of(get("frames"))
            if frame:
                progress.sites.setdefault(seq, frame)
        _remember(progress, seq, _signature(op, get, signatures), created)
    if is_open:
        progress.opened.append(_call(group, seq, op, entry, created, messages))
        if len(progress.opened) > _OPEN:
            del progress.opened[_OPEN // 2]
            progress.more += 1
    elif progress.enqueued is not None and len(progress.last) >= 3 * _LAST:
        progress.is_full = backend == "gloo" or progress.completed is not None


def _remember(progress: Progress, seq: int, signature: int, created: int) -> None:
    last = progress.last
    if last and last[-3] == seq:  # parts of one coalesced call have its number
        last[-2] = 0
    elif len(last) < 3 * _LAST:
        last.extend((seq, signature, created))


def _signature(op: str, get: Any, signatures: Signatures) -> int:
    sizes, dtypes = get("input_sizes"), get("input_dtypes")
    lowered = op.lower()
    elements = -1 if lowered in FREE_SIZES or "coalesced" in lowered else _elements(sizes)
    told = dtypes[0] if dtypes else None
    dtype = None if told is None else DTYPES[told][0] if told in DTYPES else text_of(told)
    return signatures.number(OPERATIONS.get(lowered, lowered), elements, dtype)


def _elements(sizes: Any) -> int:
    """How many numbers tensors of these sizes hold."""
    total = 0
    for shape in sizes or ():
        count = 1
        for length in shape:
            count *= length
        total += count
    return total if -1 < total < MOST else -1


def _each(sizes: Any) -> tuple[int, ...] | None:
    """How many numbers each of these tensors holds; None where that is not told."""
    if not isinstance(sizes, _SEQUENCES):
        return None
    return tuple(_elements([shape]) for shape in sizes)


def _call(
    group: str, seq: Any, op: str, entry: dict[str, Any], created: int, messages: bool
) -> Call:
    pair = _PAIR.match(op) if messages else None
    elements = _elements(entry.get("input_sizes"))
    listed = entry.get("input_dtypes") or [None]
    dtype = DTYPES.get(listed[0], (text_of(listed[0]) or None,))[0]
    lowered = op.partition(" ")[0].lower()
    counted = pair is not None or not messages
    number = seq if counted and type(seq) is int and 0 <= seq < MOST else None
    operation = OPERATIONS.get(lowered, lowered)
    exchanges = operation == "all_to_all"
    return Call(
        group,
        number,
        operation,
        op,
        created,
        entry.get("state") == "started" or bool(entry.get("time_discovered_started_ns")),
        entry.get("retired") is True,
        elements,
        bytes_of(elements, dtype),
        dtype,
        (pair[1], int(pair[2]), int(pair[3])) if pair else None,
        frame_of(entry.get("frames")),
        number_of(entry.get("timeout_ms")),
        _each(entry.get("input_sizes")) if exchanges else None,
        _each(entry.get("output_sizes")) if exchanges else None,
    )
