"""What is known of the processes in a log while it is read; all of it is bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Calls", "Communicator", "Notice", "Process", "Raw", "Stamp"]

FIRST_CALLS, LAST_CALLS = 256, 256
_MARKS = 1024


Raw = tuple[str, int, "int | None", int]
"""A stamp before anybody keeps it: cheap to make for every line."""


class Stamp(NamedTuple):
    """Where a line stands, and when it was written, where it says so."""

    file: str
    line: int
    time_ns: int | None = None
    order: int = 0
    """Its number among all lines that were read."""

    @property
    def source(self) -> str:
        """The place as findings quote it."""
        return f"{self.file}:{self.line}"


Call = tuple[bytes, bytes, bytes, bytes, bytes]
"""Operation, count, datatype, reduction, root."""


class Calls:
    """The collectives that a process called on a communicator: how many, which, in which order.

    The first and the last are kept; between them a chained hash every so many calls, so that two
    ranks can be compared however long the log is.
    """

    __slots__ = ("chain", "count", "first", "last", "marks", "messages", "newest", "ops", "stride")

    def __init__(self) -> None:
        self.count = 0
        self.messages = 0
        self.ops: dict[bytes, int] = {}
        self.first: list[Call] = []
        self.last: deque[Call] = deque(maxlen=LAST_CALLS)
        self.chain = 0
        self.stride = 1
        self.marks: list[int] = []
        self.newest: Raw | None = None

    def add(self, call: Call) -> None:
        """Count a call. Messages are counted apart: their order among peers is free."""
        self.ops[call[0]] = self.ops.get(call[0], 0) + 1
        if call[0] == b"Send" or call[0] == b"Recv":
            self.messages += 1
            return
        if self.count < FIRST_CALLS:
            self.first.append(call)
        else:
            self.last.append(call)
        self.count += 1
        self.chain = hash((self.chain, call))
        if self.count % self.stride == 0:
            self.marks.append(self.chain)
            if len(self.marks) >= _MARKS:
                self.marks = self.marks[1::2]
                self.stride *= 2

    def at(self, number: int) -> Call | None:
        """The call of this number, from 0; None where it was not kept."""
        if number < len(self.first):
            return self.first[number]
        place = number - (self.count - len(self.last))
        return self.last[place] if 0 <= place < len(self.last) else None


@dataclass(slots=True)
class Communicator:
    """One process's handle of a communicator."""

    pointer: str
    rank: int | None = None
    nranks: int | None = None
    hash: str | None = None
    """The job-wide id, where lines tell it."""
    parent: str | None = None
    split: str | None = None
    """Count and colour of a split, which with the parent say which one it is."""
    split_count: int | None = None
    color: int | None = None
    counted: bool = False
    """Whether the number of the split is told, of a split by colours."""
    bus: str | None = None
    device: int | None = None
    nodes: int | None = None
    local_rank: int | None = None
    seen: Stamp | None = None
    start: Stamp | None = None
    complete: Stamp | None = None
    ended: Stamp | None = None
    end: str | None = None
    """Destroy, Abort or Finalize."""
    timings: dict[str, float] = field(default_factory=dict)
    timed: Stamp | None = None
    calls: Calls | None = None
    ring: str | None = None


@dataclass(slots=True)
class Notice:
    """A message that means something bad, or that only looks like it, as often as it came."""

    level: str
    cause: str | None
    role: str
    """primary, secondary, note or benign."""
    text: str
    where: str
    """File of NCCL and line, or function."""
    first: Stamp
    last: Stamp
    count: int = 1
    device: int | None = None
    peer: str | None = None


@dataclass(slots=True)
class Process:
    """One process of a job, as its lines tell."""

    host: str
    pid: int
    outer_rank: int | None = None
    devices: set[int] = field(default_factory=set)
    lines: int = 0
    first: Stamp | None = None
    last: Raw | None = None
    version: tuple[str, str | None, Stamp] | None = None
    environment: dict[str, tuple[str, Stamp]] = field(default_factory=dict)
    plugin: str | None = None
    network: tuple[str, Stamp] | None = None
    interface: tuple[str, str, Stamp] | None = None
    """The interface of the bootstrap, its address."""
    sockets: list[str] = field(default_factory=list)
    hcas: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name and port: link layer, speed in Gb/s, source."""
    gdr: dict[str, tuple[bool, Stamp]] = field(default_factory=dict)
    """By HCA: whether GPU Direct RDMA is enabled."""
    via: dict[str, int] = field(default_factory=dict)
    """How many connections go which way."""
    via_source: dict[str, Stamp] = field(default_factory=dict)
    channels: int = 0
    settled: Stamp | None = None
    """A line that only comes once channels are connected or work began."""
    stage: str | None = None
    """The last step of start-up that it told of."""
    comms: dict[bytes, Communicator] = field(default_factory=dict)
    """The newest communicator behind each pointer."""
    all_comms: list[Communicator] = field(default_factory=list)
    notices: dict[tuple[str, str], Notice] = field(default_factory=dict)
    left_out: int = 0
    """Notices and communicators beyond what is kept."""
    closing: bool = False
    """Whether it was ending its communicators itself."""
    recovers: bool = False
    """Whether it goes on without a card that failed."""
    calls_from: str | None = None
    """Which lines its calls are counted from: COLL or CALL, never both."""
    results: dict[int, Stamp] = field(default_factory=dict)
    """Results that errors were passed up with, and where first."""
