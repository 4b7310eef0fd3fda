"""How each rank ended, what it was in the middle of, and who was the first to go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.analysis.basis.facts import Facts, RankFacts
from tracekit.analysis.basis.progress import Counter, read_counters, read_tallies, usual_ns
from tracekit.analysis.basis.tables import Overview
from tracekit.analysis.options import Options
from tracekit.analysis.queries import query
from tracekit.dataset.engine import Engine

__all__ = ["End", "Key", "Open", "first_death", "read_ends"]

_TERM, _ABORT, _KILL = 15, 6, 9
_BY_PEERS = re.compile(
    r"closed by (remote )?peer|connection reset|broken pipe|connection refused|socket timeout"
    r"|nccl|watchdog|timed? ?out (after )?waiting|peer .*(closed|exited)|store"
    r"|error reported from /job:",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(r"out ?of ?memory|memoryerror|cannot allocate memory", re.IGNORECASE)


_MOST_USUAL = 8
"""Ranks for which it is asked how long others took."""
_MESSAGES = ("send", "recv")
Key = tuple[str, int, str, int, int]
"""Group, number, operation, and of a message source and destination, else -1."""


def call_key(
    rank: int, group: str | None, seq: int | None, op: str | None, peer: int | None
) -> Key:
    """Which call a rank's part in it belongs to."""
    source = destination = -1
    if op in _MESSAGES:
        other = -1 if peer is None else peer
        source, destination = (rank, other) if op == "send" else (other, rank)
        op = "message"
    return group or "", seq or 0, op or "", source, destination


@dataclass(frozen=True, slots=True)
class Open:
    """A span that was open when the record of its rank ends."""

    kind: str
    name: str
    step: int | None
    start_ns: int
    op: str | None = None
    group: str | None = None
    seq: int | None = None
    group_size: int | None = None
    root: int | None = None
    lane: str = ""
    id: int | None = None
    parent: int | None = None
    rank: int = -1

    @property
    def key(self) -> Key:
        """Which call it is, the same for all that take part."""
        return call_key(self.rank, self.group, self.seq, self.op, self.root)

    @property
    def pair(self) -> tuple[int, ...]:
        """The two ranks of a send or receive; only its own where the other may be anyone."""
        if self.op not in _MESSAGES:
            return ()
        return (self.rank,) if self.root is None else tuple(sorted((self.rank, self.root)))

    @property
    def blocks(self) -> bool:
        """Whether its thread does nothing else until it is over."""
        return not self.lane.startswith("group:")


@dataclass(slots=True)
class End:
    """The end of one rank, as far as it is known."""

    rank: int
    state: str
    time_ns: int
    """When it ended, or the last instant it is known to have lived."""
    signal: int | None = None
    code: int | None = None
    source: str | None = None
    error: str | None = None
    frame: str | None = None
    opened: list[Open] = field(default_factory=list)
    behind: set[Key] = field(default_factory=set)
    """Of the calls that some rank is in, those it ended."""
    last_span: str | None = None
    last_step: int | None = None
    last_end_ns: int | None = None
    saves: dict[str, int] = field(default_factory=dict)
    """How many saves of each name it ended; told only where some rank is in one."""
    longest_save_ns: dict[str, int] = field(default_factory=dict)
    counter: Counter | None = None
    """What it counts while it is in what others may wait for."""
    usual_ns: float | None = None
    """How long others took for that."""
    tallies: dict[str, float] = field(default_factory=dict)
    """How far it has counted; told where some rank waits."""

    @property
    def is_bad(self) -> bool:
        """Whether it ended other than it should."""
        return self.state in ("signal", "exception", "vanished") or (
            self.state == "exit" and self.code != 0
        )

    @property
    def inside(self) -> Open | None:
        """The innermost span that was open; the step itself only where there is nothing else."""
        inner = [one for one in self.opened if one.kind != "step" and one.blocks]
        inner = inner or [one for one in self.opened if one.kind != "step"]
        return inner[-1] if inner else self.opened[-1] if self.opened else None

    @property
    def calls(self) -> list[Open]:
        """The collectives that it had entered and that were not over."""
        return [one for one in self.opened if one.kind == "comm" and one.seq is not None]

    @property
    def waits_in(self) -> Open | None:
        """The collective it was blocked in: not one that goes on beside its work, but buckets are
        waited for at the end of their backward."""
        backwards = {one.id for one in self.opened if one.kind == "backward"}
        calls = self.calls
        return next(
            (one for one in calls if one.blocks),
            next((one for one in calls if one.parent in backwards), None),
        )

    @property
    def saving(self) -> Open | None:
        """The save it was in the middle of."""
        return next((one for one in self.opened if one.kind == "checkpoint" and one.blocks), None)

    @property
    def out_of_memory(self) -> bool:
        """Whether its last words are about memory."""
        return bool(_OUT_OF_MEMORY.search(self.error or ""))

    def blame(self) -> int:
        """How likely its end is a cause: 0 surely, 9 surely an effect of another's end."""
        if self.out_of_memory:
            return 0
        if self.state == "signal":
            return {_TERM: 9, _ABORT: 4}.get(self.signal or 0, 0)
        if self.error and _BY_PEERS.search(self.error):
            return 8
        if self.state == "exception":
            return 1
        # Who vanished while it waited for others was perhaps ended because of them. The last
        # instants that are known of the vanished are a second apart, so their order says little.
        return 3 if self.waits_in else 2


def read_ends(engine: Engine, seen: Overview, facts: Facts) -> dict[int, End]:
    """The end of every rank that left a record or of which the launcher spoke."""
    ends = {
        rank: _end(rank, facts.of(rank), seen.last_ns.get(rank))
        for rank in sorted({*seen.ranks, *(r for r, f in facts.ranks.items() if f.end)})
    }
    if seen.open_spans:
        for row in engine.sql(query("open_spans", attempt=seen.attempt)).to_pylist():
            ends[row["rank"]].opened.append(
                Open(
                    row["kind"], row["name"], row["step"], row["start_ns"], row["collective_op"],
                    row["collective_group"], row["collective_seq"], row["group_size"],
                    row["peer_rank"], row["lane"] or "", row["span_id"], row["parent_id"],
                    row["rank"],
                )
            )  # fmt: skip
    for seq in sorted({w.seq for end in ends.values() if (w := end.waits_in) and w.seq}):
        for row in engine.sql(query("ended_calls", attempt=seen.attempt, seq=seq)).to_pylist():
            rank = row["rank"]
            ends[rank].behind.add(call_key(rank, row["grp"], seq, row["op"], row["peer_rank"]))
    if any(end.is_bad or end.opened for end in ends.values()):
        for row in engine.sql(query("last_spans", attempt=seen.attempt)).to_pylist():
            end = ends[row["rank"]]
            end.last_span, end.last_step = row["name"], row["step"]
            end.last_end_ns = row["end_ns"]
    if any(end.waits_in for end in ends.values()):
        _read_progress(engine, seen.attempt, ends)
    if any(end.saving for end in ends.values()):
        for row in engine.sql(query("saves", attempt=seen.attempt)).to_pylist():
            end = ends[row["rank"]]
            end.saves[row["name"]] = row["saves"]
            end.longest_save_ns[row["name"]] = row["longest_ns"]
    return ends


def _read_progress(engine: Engine, attempt: int, ends: Mapping[int, End]) -> None:
    """How those get ahead that wait for nobody."""
    inside = {
        rank: one
        for rank, end in ends.items()
        if end.waits_in is None and (one := end.inside) is not None and one.kind != "step"
    }
    for rank, counter in read_counters(engine, attempt, inside).items():
        ends[rank].counter = counter
    for rank, one in list(inside.items())[:_MOST_USUAL]:
        ends[rank].usual_ns = usual_ns(engine, attempt, rank, one)
    for rank, tallies in read_tallies(engine, attempt).items():
        if rank in ends:
            ends[rank].tallies = tallies


def _end(rank: int, facts: RankFacts, last_ns: int | None) -> End:
    said: Mapping[str, Any] = facts.end
    code = said.get("code", said.get("exitcode"))
    number = said.get("signal")
    state = str(said.get("state") or "unknown")
    if number is None and isinstance(code, int) and code < 0:
        number, state = -code, "signal"
    text = [str(said[key]) for key in ("type", "message", "error") if said.get(key)]
    if state == "exit" and text:
        state = "exception"
    looks = [stack["time_ns"] for stack in facts.stacks if stack.get("time_ns")]
    known = [time for time in (facts.end_ns, last_ns, facts.heartbeat_ns, *looks) if time]
    told = facts.end_ns if state not in ("running", "vanished") else None
    time_ns = told or max(known, default=0)
    return End(
        rank,
        state,
        time_ns,
        number,
        code if isinstance(code, int) else None,
        said.get("source"),
        " ".join(": ".join(text).split()) or None,
        said.get("frame"),
    )


def first_death(ends: Mapping[int, End], options: Options) -> End | None:
    """The rank whose end explains the others': among those that ended first, the one whose end
    is least likely an effect."""
    bad = [end for end in ends.values() if end.is_bad]
    if not bad:
        return None
    first = min(end.time_ns for end in bad)
    together = first + options.deaths_together_s * 1e9
    early = [end for end in bad if end.time_ns <= together]
    return min(early, key=lambda end: (end.blame(), end.time_ns, end.rank))
