"""One job, or one attempt of it, as its logs tell it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from tracekit.adapters.text_logs._drift import Drift
from tracekit.adapters.text_logs._last_error import Quoted
from tracekit.adapters.text_logs._patterns import Hit
from tracekit.adapters.text_logs._rank_log import Line, RankLog, Trouble, Wait

__all__ = ["DEFAULT_GROUP", "Ended", "Job", "JobEvent", "Mismatch", "ranks_of"]

_GROUP = re.compile(
    r"\[(?:PG (?:ID (?P<id>[^\s(\]]{1,64}) PG GUID (?P<guid>[^\s(\]]{1,64})"
    r"(?:\((?P<desc>[^)]{0,200})\))?"
    r"|(?P<name>[^\s(\]]{1,64})(?: \((?P<desc2>[^)]{0,200})\))?) )?Rank (?P<rank>\d{1,6})\]"
)
_FINGERPRINT = re.compile(
    r"(?:SequenceNumber=(?P<seq>\d{1,18})(?:, )?)?OpType=(?P<op>\w{1,64})"
    r"(?:, TensorShape=\[(?P<shape>[^\]]{0,400})\])?(?:, TensorDtypes=(?P<dtype>\w{1,32}))?"
)
_OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce",
    "_ALLREDUCE_SPARSE": "all_reduce",
    "BROADCAST": "broadcast", "REDUCE": "reduce", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather", "ALLGATHER_COALESCED": "all_gather", "GATHER": "gather",
    "SCATTER": "scatter", "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter", "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter",
    "ALLTOALL_BASE": "all_to_all", "ALLTOALL": "all_to_all", "SEND": "send", "RECV": "recv",
    "BARRIER": "barrier", "COALESCED": "coalesced",
}  # fmt: skip
DEFAULT_GROUP = "0"
_OF_ONE_SIZE = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "BARRIER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
)
"""Calls in which all ranks have parts of one size."""
_UNCOUNTED = ("send", "recv", "coalesced")
"""What is numbered apart from collectives, or stands for several."""
_KEPT = 200
_STARTING = 10
"""Calls of a group that start-up takes at most."""
_RANKS = 10_000
"""Ranks that one line may name, and ends that are kept."""


@dataclass(slots=True)
class Ended:
    """How a rank ended, as a launcher or an error file says."""

    rank: int | None
    code: int | None
    signal: int | None
    line: Line
    pid: int | None = None
    local: int | None = None
    host: str | None = None
    error: str | None = None
    message: str | None = None
    frame: str | None = None
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A line about the job, a process or a node, whose rank is not written in it."""

    line: Line
    name: str
    cause: str
    role: str
    pattern: str
    said: Mapping[str, str | None] = field(default_factory=dict)
    reason: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two ranks in different calls, as one of them was told by the other."""

    ranks: tuple[int, int | None]
    calls: tuple[Mapping[str, str | None], Mapping[str, str | None]]
    line: Line


@dataclass(slots=True)
class Job:
    """What was read of one attempt."""

    number: int = 0
    ranks: dict[Hashable, RankLog] = field(default_factory=dict)
    """By rank; by what else is known where that is not: None, or ("local", file, number)."""
    ended: list[Ended] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    missing: list[tuple[tuple[int, ...], str, Trouble]] = field(default_factory=list)
    quoted: list[Quoted] = field(default_factory=list)
    """Causes in the words of NCCL, as errors of ranks quote them."""
    world: int = 0
    members: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of each group: place in it -> rank."""
    group_names: dict[str, str] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    failed: bool = False
    """Whether a launcher said how ranks ended."""
    trained: bool = False
    """Whether a call was so far on that start-up must have been over."""
    subgroups: bool = False
    """Whether lines that name no group speak of several."""
    _half: tuple[int, Mapping[str, str | None]] | None = None

    def log(self, who: Hashable) -> RankLog:
        """The log of a rank, made at its first line."""
        log = self.ranks.get(who)
        if log is None:
            log = self.ranks[who] = RankLog()
        return log

    def group(self, body: str, rank: int | None) -> tuple[str, int | None]:
        """The process group that a line speaks of, and the rank's place in it."""
        match = _GROUP.search(body, 0, 600)
        if match is None:
            return DEFAULT_GROUP, rank
        key = match["guid"] or match["name"] or DEFAULT_GROUP
        name = match["desc"] or match["desc2"] or key
        if name in ("default_pg", "undefined") or match["id"] == "0":
            key, name = DEFAULT_GROUP, "default_pg"
        place = int(match["rank"])
        self.group_names.setdefault(key, name)
        if rank is not None:
            self.members.setdefault(key, {})[place] = rank
        return key, place

    def told(self, who: Hashable, hit: Hit, line: Line, host: str | None) -> None:
        """Take in a line that the table of patterns knows."""
        row, said = hit.row, hit.said
        log = self.log(who)
        rank = who if isinstance(who, int) else None
        if row.role in ("benign", "note", "start", "options", "world", "restart", "gil"):
            self._config(row.role, row.name, said)
            return
        if row.role in (
            "kernel", "kernel_note", "scheduler", "cancelled", "task_end", "oom_event", "elastic"
        ):  # fmt: skip
            self._about(hit, line, host, rank)
            return
        trouble = Trouble(line, row.event, row.cause, row.role, row.name, said=said)
        if row.role == "status" or row.role == "wait":
            self._wait(log, rank, said, line)
        if row.role == "mismatch":
            self._mismatch(said, line)
        elif row.role == "mismatch_rest" and self._half is not None and said.get("b"):
            first, call = self._half
            other = _fingerprint(said.get("fb") or "")
            self.mismatches.append(Mismatch((first, int(said["b"] or 0)), (call, other), line))
            self._half = None
            return
        if row.role == "missing":
            self.missing.append((ranks_of(said.get("ranks") or ""), row.name, trouble))
        log.trouble(trouble)

    def _config(self, role: str, name: str, said: Mapping[str, str | None]) -> None:
        if role in ("options", "world") and said.get("world"):
            world = int(said["world"] or 0)
            if 1 < world <= 1_000_000:
                self.world = max(self.world, world)

    def _about(self, hit: Hit, line: Line, host: str | None, rank: int | None) -> None:
        row, said = hit.row, hit.said
        host = said.get("host") or host
        if row.role == "task_end":
            self.failed = True
            signals = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7}
            number = row.more.get("signal") or signals.get(said.get("how") or "")
            number = 15 if said.get("how") == "Terminated" else number
            code = int(said["code"] or 0) if said.get("code") else None
            if code is not None and code > 128 and code - 128 in (6, 7, 9, 11, 15):
                number, code = code - 128, None
            for one in ranks_of(said.get("ranks") or "")[: _RANKS - len(self.ended)]:
                error = "out of memory" if row.cause == "killed_oom" else None
                self.ended.append(Ended(one, code, number, line, host=host, error=error))
            if row.cause != "killed_oom":
                return
        if row.role == "elastic":
            code = int(said["code"] or 0)
            self.ended.append(
                Ended(None, code, -code if code < 0 else None, line, int(said["pid"] or 0),
                      int(said["local"] or 0), host)
            )  # fmt: skip
            return
        if row.role == "kernel_note" and row.cause != "killed_oom":
            return
        if len(self.events) < _KEPT:
            said = {**said, "rank": str(rank) if rank is not None else None}
            reason = row.more.get("reason")
            self.events.append(
                JobEvent(line, row.event, row.cause, row.role, row.name, said, reason, host)
            )

    def _wait(
        self, log: RankLog, rank: int | None, said: Mapping[str, str | None], line: Line
    ) -> None:
        key, place = self.group(line.text, rank)
        if rank is None and key == DEFAULT_GROUP and place is not None:
            log = self.log(place)
        if key == DEFAULT_GROUP and place is not None and "[PG " not in line.text:
            log.nameless = True
            self.subgroups |= rank is not None and place != rank
        if said.get("enqueued") is not None:
            work = int(said["enqueued"] or 0), int(said["completed"] or 0), line
            log.works.setdefault(key, work)
        op, ran = said.get("op"), said.get("ran") or said.get("to") or "0"
        if op is not None and key not in log.waits:
            numel = said.get("nin")
            log.waits[key] = Wait(
                key, _OPS.get(op, op.strip("_").lower()), int(said.get("seq") or 0), int(ran),
                int(said.get("to") or 0), int(numel) if numel else None, line,
                op in _OF_ONE_SIZE,
            )  # fmt: skip

    def _mismatch(self, said: Mapping[str, str | None], line: Line) -> None:
        first, call = int(said["a"] or 0), _fingerprint(said.get("fa") or "")
        if said.get("b") is None:
            self._half = first, call
            return
        if len(self.mismatches) < _KEPT:
            other = _fingerprint(said.get("fb") or "")
            self.mismatches.append(Mismatch((first, int(said["b"] or 0)), (call, other), line))

    def differing(self) -> Iterator[Mismatch]:
        """Ranks that wait in other calls than the first of them at one number of a group."""
        calls: dict[tuple[str, int], dict[int, Wait]] = {}
        for rank, log in self.ranks.items():
            for group, wait in log.waits.items():
                if isinstance(rank, int) and wait.seq and wait.op not in _UNCOUNTED:
                    calls.setdefault((group, wait.seq), {})[rank] = wait
        for waits in calls.values():
            sizes = {wait.numel if wait.of_one_size else None for wait in waits.values()}
            if len({wait.op for wait in waits.values()}) > 1 or (
                len(sizes) > 1 and None not in sizes
            ):
                first, *others = sorted(waits)
                for rank in others:
                    both = _waiting(waits[first]), _waiting(waits[rank])
                    yield Mismatch((first, rank), both, waits[first].line)

    def settle(self) -> None:
        """All is read: what waited in groups without a name is compared only where there can have
        been no more than one of them, that of all ranks."""
        waits = [wait for log in self.ranks.values() for wait in log.waits.values()]
        self.trained = any(wait.seq > _STARTING for wait in waits)
        nameless = [log for log in self.ranks.values() if log.nameless]
        if self.subgroups or 2 * len(nameless) < self.world:
            for log in nameless:
                log.waits.pop(DEFAULT_GROUP, None)
                log.works.pop(DEFAULT_GROUP, None)

    def rename(self, old: Hashable, new: Hashable) -> None:
        """What was read of one becomes that of another."""
        log = self.ranks.pop(old, None)
        if log is not None:
            log.close()
            self.drift.rename(old, new)
            if new in self.ranks:
                self.ranks[new].join(log)
            else:
                self.ranks[new] = log


def _waiting(wait: Wait) -> Mapping[str, str | None]:
    numel = str(wait.numel) if wait.numel is not None else None
    return {"op": wait.op, "seq": str(wait.seq), "shape": numel}


def _fingerprint(text: str) -> Mapping[str, str | None]:
    match = _FINGERPRINT.search(text, 0, 1000)
    if match is None:
        return {}
    said = match.groupdict()
    op = said.get("op") or ""
    return {**said, "op": _OPS.get(op, op.lower())}


def ranks_of(text: str) -> tuple[int, ...]:
    """Ranks as lists write them: 1, 2 or 0-3,5; of very many the first ones."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            found += range(int(low), min(int(high or low), int(low) + _RANKS) + 1)
    return tuple(dict.fromkeys(found[:_RANKS]))
