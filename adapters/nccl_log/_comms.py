"""Lines about communicators: who is which rank of what, and how far its start-up came."""

from __future__ import annotations

import re

from tracekit.adapters.nccl_log._state import Communicator, Process, Raw, Stamp

__all__ = ["comm_line", "comm_of", "init_timings"]

_LINE = re.compile(
    rb"comm (?P<comm>0x[0-9a-f]{1,16}|\(nil\)) rank (?P<rank>\d{1,9}) n[rR]anks (?P<nranks>\d{1,9})"
    rb"(?: nNodes (?P<nodes>\d{1,9}))?(?: localRanks? \d{1,9}){0,2}"
    rb"(?: cudaDev (?P<cuda>\d{1,4}))?(?: nvmlDev \d{1,4})?(?: busId (?P<bus>[0-9a-f]{1,16}))?"
    rb"(?: parent (?P<parent>0x[0-9a-f]{1,16}))?(?: (?:split|child)Count (?P<split>-?\d{1,9}))?"
    rb"(?: color (?P<color>-?\d{1,12}))?(?: key -?\d{1,12})?(?: commId (?P<id>0x[0-9a-f]{1,16}))?"
)
_STATE = re.compile(rb"- ?(Init|Destroy|Abort|Finalize|Revoke) (START|COMPLETE)")
_NODES = re.compile(rb"comm (0x[0-9a-f]{1,16}) rank \d{1,9} nRanks \d{1,9} nNodes (\d{1,9})")
_PLAIN = re.compile(rb"\brank (\d{1,9}) n[rR]anks (\d{1,9})\b")
_TIMINGS = re.compile(
    rb"rank (\d{1,9}) nranks (\d{1,9}) total ([\d.]{1,16})(?: \(([^)]{0,300})\))?"
)
_MOST = 4096


def comm_of(process: Process, pointer: bytes, stamp: Raw) -> Communicator | None:
    """The communicator behind a pointer, made when new; None where there are too many."""
    known = process.comms.get(pointer)
    return known if known is not None else _new(process, pointer, stamp)


def _new(process: Process, pointer: bytes, stamp: Raw) -> Communicator | None:
    if len(process.all_comms) >= _MOST:
        process.left_out += 1
        return None
    made = Communicator(pointer.decode(), seen=Stamp(*stamp))
    process.comms[pointer] = made
    process.all_comms.append(made)
    return made


def comm_line(process: Process, message: bytes, stamp: Raw) -> bool:
    """Take a line that names a rank of a communicator; False where it is none."""
    message = message[:1024]
    found = _LINE.search(message)
    if found is None:
        plain = _PLAIN.search(message)
        if plain is None:
            return False
        comm = next((one for one in process.all_comms if one.pointer == ""), None)
        comm = comm or _new(process, b"", stamp)
        if comm is not None:
            comm.rank, comm.nranks = int(plain[1]), int(plain[2])
        return True
    state = _STATE.search(message, found.end())
    pointer, what = found["comm"], (state[1], state[2]) if state else (b"", b"")
    known = process.comms.get(pointer)
    reused = known is not None and (
        known.ended is not None
        or (what == (b"Init", b"START") and known.start is not None
            and (known.complete is not None or known.hash != _name(found["id"])))
    )  # fmt: skip
    comm = _new(process, pointer, stamp) if known is None or reused else known
    if comm is None:
        return True
    comm.rank, comm.nranks = int(found["rank"]), int(found["nranks"])
    comm.hash = _name(found["id"]) or comm.hash
    comm.bus = _name(found["bus"]) or comm.bus
    comm.device = int(found["cuda"]) if found["cuda"] else comm.device
    comm.nodes = int(found["nodes"]) if found["nodes"] else comm.nodes
    if found["parent"]:
        comm.parent = _name(found["parent"])
        comm.counted = found["split"] is not None and b"Shrink" not in message[: found.start()]
        comm.split_count = int(found["split"]) if found["split"] else comm.split_count
        comm.color = int(found["color"]) if found["color"] else comm.color
    _advance(process, comm, what, Stamp(*stamp))
    return True


def _name(raw: bytes | None) -> str | None:
    return raw.decode() if raw else None


def _advance(process: Process, comm: Communicator, what: tuple[bytes, bytes], at: Stamp) -> None:
    verb, phase = what
    if verb == b"Init" and phase == b"START":
        comm.start, process.stage = comm.start or at, "start"
    elif verb == b"Init":
        comm.complete, process.stage = comm.complete or at, "complete"
        process.settled = process.settled or at
    elif verb:
        comm.end, process.closing = verb.decode(), True
        if phase == b"COMPLETE":
            comm.ended = at


def init_timings(process: Process, message: bytes, stamp: Raw) -> None:
    """How long the phases of start-up took, in seconds, of the communicator that began last."""
    found = _TIMINGS.search(message[:1024])
    if found is None:
        return
    rank, nranks = int(found[1]), int(found[2])
    comm = next(
        (
            one for one in reversed(process.all_comms)
            if not one.timings and (one.rank, one.nranks) == (rank, nranks)
        ),
        None,
    )  # fmt: skip
    if comm is None:
        return
    comm.timings["total"], comm.timed = _seconds(found[3]), Stamp(*stamp)
    for part in (found[4] or b"").split(b","):
        name, _, value = part.strip().rpartition(b" ")
        if name:
            comm.timings[name.decode("ascii", "replace")] = _seconds(value)


def _seconds(raw: bytes) -> float:
    try:
        return float(raw)
    except ValueError:
        return 0.0
