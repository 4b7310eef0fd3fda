"""What each message of NCCL tells of the process that wrote it.

A message is found by its first word. Patterns are few, anchored and bounded, so that no line
costs more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tracekit.adapters.nccl_log._comms import comm_line, comm_of, init_timings
from tracekit.adapters.nccl_log._notices import note, warning
from tracekit.adapters.nccl_log._state import Calls, Process, Raw, Stamp
from tracekit.adapters.nccl_log._table import meaning_of_info

__all__ = ["HANDLERS", "call", "other", "warning"]

Handler = Callable[[Process, bytes, Raw], None]

_OPS = (
    "AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "Send", "Recv", "AlltoAll",
    "AllToAll", "Gather", "Scatter", "PutSignal", "Signal", "WaitSignal",
)  # fmt: skip
_HCA = re.compile(
    rb"\[\d{1,4}\]([^\s:/\[\]]{1,64}):(\d{1,4})(?::-?\d{1,6}:-?\d{1,6})?/(IB|RoCE|SHARP)"
)
_INTERFACE = re.compile(rb"(?:\[\d{1,4}\])?([\w.@-]{1,64}):([0-9A-Za-z.:%\[\]-]{1,80})<(\d{1,5})>")
_SPEED = re.compile(
    rb"\[\d{1,4}\] ([^\s:/]{1,64}):(?:[^\s:/]{1,64}:)?(\d{1,4})/(\w{1,8}) .{0,200}?speed=(\d{1,12})"
)
_TOPOLOGY = re.compile(rb"\+ NET\[([\d.]{1,12})\] - NET/(\S{1,64})")
_GDR = re.compile(rb"(Enabled|Disabled) for (?:GPU .{0,40}?/ )?HCA (\d{1,4})(?: '([^']{1,64})')?")
_VERSION = re.compile(rb"[NR]CCL version ?:? ?(\d[\w.-]{1,64}?)(?:\+(?:cuda|hip)([\w.]{1,40}))?$")
_RESULT = re.compile(rb"[\w./-]{1,255}:\d{1,6}(?: \(\w{1,128}\))? -> (\d{1,3})\b")
_ENVIRONMENT = re.compile(rb"(NCCL_\w{1,64}) set (?:by environment )?to (.{0,512})")
_ARGUMENTS = re.compile(rb"nccl(\w{1,32})\(([^)]{0,400})\)")
_MOST_VIAS, _MOST_SETTINGS = 256, 512


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()


def _channel(process: Process, message: bytes, stamp: Raw) -> None:
    """How two ranks are connected, or in which order a ring goes."""
    process.stage = "channels"
    place = message.find(b" via ")
    if place < 0:
        if b"/" in message[:16] and b" : " in message and process.comms:
            newest = process.all_comms[-1]
            if newest.ring is None:
                newest.ring = _text(message[message.find(b" : ") + 3 :])[:127]
        return
    word = message[place + 5 :].decode("ascii", "replace").rstrip()
    via = process.via
    if word in via:
        via[word] += 1
    elif len(via) < _MOST_VIAS:
        via[word] = 1
        process.via_source[word] = Stamp(*stamp)
    number = message[8:10]
    if number.isdigit() and int(number) >= process.channels:
        process.channels = int(number) + 1


def _collective(process: Process, message: bytes, stamp: Raw) -> None:
    """A call of a collective (SUBSYS=COLL): it is counted, its order kept."""
    parts = message.split(b" ")
    if len(parts) < 19 or parts[1] != b"opCount" or process.calls_from == "CALL":
        if process.settled is None and b"Bytes -> " in message:
            process.settled = Stamp(*stamp)
        return
    comm = process.comms.get(parts[16])
    if comm is None or comm.calls is None:
        comm = comm_of(process, parts[16], stamp)
        if comm is None:
            return
        if comm.nranks is None and parts[17][:8] == b"[nranks=" and parts[17][8:-1].isdigit():
            comm.nranks = int(parts[17][8:-1])
        comm.calls = comm.calls or Calls()
        process.calls_from = "COLL"
        process.settled = process.settled or Stamp(*stamp)
        process.stage = "collectives"
    calls = comm.calls
    assert calls is not None
    calls.add((parts[0][:-1], parts[8], parts[10], parts[12], parts[14]))
    calls.newest = stamp


def call(process: Process, message: bytes, stamp: Stamp) -> None:
    """A call of NCCL's API (NCCL_DEBUG=TRACE, SUBSYS=CALL)."""
    found = _ARGUMENTS.match(message)
    if found is None or process.calls_from == "COLL" or found[1].decode() not in _OPS:
        return
    arguments = [one.strip() for one in found[2].split(b",")]
    if len(arguments) < 8:
        return
    comm = comm_of(process, arguments[6], stamp)
    if comm is not None:
        comm.calls = comm.calls or Calls()
        comm.calls.add((found[1], arguments[2], arguments[3], arguments[4], arguments[5]))
        comm.calls.newest = stamp
        process.calls_from = "CALL"
        process.settled = process.settled or stamp
        process.stage = "collectives"


def _version(process: Process, message: bytes, stamp: Raw) -> None:
    found = _VERSION.search(message.rstrip()[:256])
    if found is not None:
        runtime = found[2].decode() if found[2] else None
        process.version = found[1].decode(), runtime, Stamp(*stamp)


def _using(process: Process, message: bytes, stamp: Raw) -> None:
    if message.startswith(b"Using network "):
        name = message[14:80].partition(b" [repeated")[0]  # Ray leaves out what others say, too
        process.network = _text(name), Stamp(*stamp)


def _net(process: Process, message: bytes, stamp: Raw) -> None:
    """A line of a network: which cards or interfaces it uses, and whether they reach the GPU."""
    if b"GPU Direct RDMA" in message:
        _gpu_direct(process, message, stamp)
        return
    place = message.find(b"Using ")
    if place >= 0 and place < 24:
        rest = message[place + 6 :]
        if message.startswith(b"NET/IB"):
            for name, port, link in _HCA.findall(rest):
                card = process.hcas.setdefault(f"{_text(name)}:{port.decode()}", {})
                card.setdefault("source", Stamp(*stamp))
                card["link"] = link.decode()
            if process.network is None:
                process.network = "IB", Stamp(*stamp)
        elif message.startswith(b"NET/Socket") and b"threads" not in rest:
            process.sockets = [f"{_text(n)}:{_text(a)}" for n, a, _ in _INTERFACE.findall(rest)][:8]
            if process.network is None:
                process.network = "Socket", Stamp(*stamp)
        elif message.startswith(b"NET/OFI"):
            process.plugin = _text(rest)[:80]
        return
    if b"speed=" in message:
        found = _SPEED.search(message)
        if found is not None:
            card = process.hcas.setdefault(f"{_text(found[1])}:{found[2].decode()}", {})
            card["source"] = Stamp(*stamp)
            card["link"] = found[3].decode()
            card["speed_gbs"] = int(found[4]) / 1000.0
        return
    if message.startswith(b"NET/OFI Selected"):
        process.plugin = _text(message[17:])[:80]
        return
    other(process, message, stamp)


def _gpu_direct(process: Process, message: bytes, stamp: Raw) -> None:
    found = _GDR.search(message)
    if found is None or b"distance" in message:  # which card is near which GPU is no fault
        return
    name = _text(found[3] or found[2])
    if len(process.gdr) < 64:
        process.gdr[name] = found[1] == b"Enabled", Stamp(*stamp)


def _bootstrap(process: Process, message: bytes, stamp: Raw) -> None:
    process.stage = process.stage or "bootstrap"
    place = message.find(b"Using ")
    if place < 0:
        return
    found = _INTERFACE.search(message, place + 6)
    if found is not None:
        process.interface = _text(found[1]), _text(found[2]), Stamp(*stamp)


def _stage(name: str) -> Handler:
    def handle(process: Process, message: bytes, stamp: Raw) -> None:
        process.stage = name

    return handle


def _connected(process: Process, message: bytes, stamp: Raw) -> None:
    if message.startswith((b"Connected all rings", b"Connected all trees")):
        process.stage = _text(message[10:19])


def _launch(process: Process, message: bytes, stamp: Raw) -> None:
    process.settled = process.settled or Stamp(*stamp)


def _init(process: Process, message: bytes, stamp: Raw) -> None:
    if message.startswith(b"Init timings"):
        init_timings(process, message, stamp)
    else:
        other(process, message, stamp)


def _indented(process: Process, message: bytes, stamp: Raw) -> None:
    """A line of the topology, or one that begins with a blank."""
    text = message.lstrip(b" ")
    if text.startswith(b"+ "):
        found = _TOPOLOGY.match(text)
        if found is not None and len(process.hcas) < 64:
            name = f"NET/{_text(found[2])}"
            if not any("speed_gbs" in card for card in process.hcas.values()):
                card = process.hcas.setdefault(name, {"link": "NET"})
                card.setdefault("source", Stamp(*stamp))
                card["topology_gbs"] = float(found[1]) * 8
    elif text:
        HANDLERS.get(text.partition(b" ")[0], other)(process, text, stamp)


def other(process: Process, message: bytes, stamp: Raw) -> None:
    """A message whose first word says nothing: settings, results, and what the table knows."""
    if message.startswith(b"NCCL_"):
        found = _ENVIRONMENT.match(message)
        if found is not None:
            if len(process.environment) < _MOST_SETTINGS:
                value = _text(found[2])
                value = value[:-1] if value.endswith(".") else value
                process.environment[found[1].decode()] = value, Stamp(*stamp)
            return
    if b" -> " in message:
        found = _RESULT.match(message)
        if found is not None:
            process.results.setdefault(int(found[1]), Stamp(*stamp))
            return
    if b"rank" in message and comm_line(process, message, stamp):
        return
    meaning = meaning_of_info(message)
    if meaning is not None and meaning.role != "benign":
        note(process, "INFO", meaning, message, "", Stamp(*stamp), None)


def _handlers() -> dict[bytes, Handler]:
    found: dict[bytes, Handler] = {f"{op}:".encode(): _collective for op in _OPS}
    for word in ("Channel", "Ring", "CollNet", "Coll"):
        found[word.encode()] = _channel
    for word in (
        "comm", "[Rank", "ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitAll",
        "ncclCommInitRankScalable", "ncclCommSplit", "ncclCommShrink", "ncclCommGrow",
    ):  # fmt: skip
        found[word.encode()] = _comm
    for name in ("NET/IB", "NET/Socket", "NET/OFI"):
        found[name.encode()] = found[f"{name}:".encode()] = _net
    found[b"GPU"] = _gpu_direct
    found[b"Bootstrap"] = found[b"Bootstrap:"] = _bootstrap
    found[b"Init"] = _init
    found[b"NCCL"] = found[b"RCCL"] = _version
    found[b"Using"] = _using
    found[b"Connected"] = _connected
    found[b"Launch"] = _launch
    found[b"Trees"] = found[b"Tree"] = _stage("channels")
    found[b"Setting"] = found[b"==="] = _stage("topology")
    found[b""] = _indented
    return found


def _comm(process: Process, message: bytes, stamp: Raw) -> None:
    if not comm_line(process, message, stamp):
        other(process, message, stamp) if message[:4] != b"comm" else None


HANDLERS: Mapping[bytes, Handler] = MappingProxyType(_handlers())
"""What takes a message, by its first word."""
