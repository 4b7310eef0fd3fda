"""Hangs: who never came to the collective the others are in, and what keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracekit.analysis.basis.ends import End, Key, Open
from tracekit.analysis.basis.facts import Facts, RankFacts
from tracekit.analysis.options import Options
from tracekit.analysis.post_mortem.stacks import differ, innermost, user_frame

__all__ = ["Culprit", "Stall", "culprit_of", "find_stall", "is_busy", "over", "patience"]

_BUSY = ("checkpoint", "eval", "data", "compile", "io", "transfer")


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that others wait for, and what is known of it."""

    rank: int
    state: str
    """stopped, gil, disk (waits in the kernel), slow (moves), stuck (does not), unknown."""
    inside: Open | None
    since_ns: int | None
    """When it began what it is in; None where it is in nothing."""
    frame: str | None
    """Its innermost frame of the user's code."""
    deepest: str | None
    """Its innermost frame, whosever it is."""
    wchan: str | None
    looks: int


@dataclass(frozen=True, slots=True)
class Stall:
    """A collective that some ranks are in and others are not."""

    call: Open
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    culprits: tuple[Culprit, ...]
    """The ranks at whose end nobody else is to be waited for; empty in a circle."""
    kind: str
    """missing, mismatch or cycle."""
    others: Mapping[int, Open]
    """The other collectives that missing ranks are in."""
    since_ns: int
    """When the last of the waiting ranks came."""
    seconds: float


def find_stall(
    ends: Mapping[int, End], facts: Facts, median_step_ns: float | None, options: Options
) -> Stall | None:
    """The stall in which the job is, or was when it ended; None where nothing hung."""
    waits = {rank: call for rank, end in ends.items() if (call := end.waits_in) is not None}
    calls = _calls(waits)
    if not calls:
        return None
    waiting = min(calls.items(), key=lambda item: (-len(item[1]), item[0]))[1]
    call = waits[waiting[0]]
    arrived = {*waiting, *_passed(ends, call)}
    missing = tuple(sorted(set(_members(ends, facts, call)) - arrived))
    since = max(waits[rank].start_ns for rank in waiting)
    seconds = (over(ends, waiting) - since) / 1e9
    gave_up = all(ends[rank].is_bad for rank in waiting)
    if seconds < patience(ends, facts, median_step_ns, options, gave_up):
        return None
    others = {rank: waits[rank] for rank in missing if rank in waits}
    kind, ranks = _roots(ends, facts, waits, missing, others, call.group)
    if not missing:
        kind, ranks = "missing", ()  # all have come: the network, or a rank that left no record
    culprits = tuple(culprit_of(rank, ends, facts, options) for rank in ranks)
    return Stall(call, waiting, missing, culprits, kind, others, since, seconds)


def _calls(waits: Mapping[int, Open]) -> dict[Key, tuple[int, ...]]:
    """Which ranks are in which collective."""
    calls: dict[Key, tuple[int, ...]] = {}
    for rank, call in sorted(waits.items()):
        calls[call.key] = (*calls.get(call.key, ()), rank)
    return calls


def _members(ends: Mapping[int, End], facts: Facts, call: Open) -> tuple[int, ...]:
    """Who should take part: two ranks in a message, else the group's members, else all ranks."""
    if call.pair:
        return call.pair
    told = facts.groups.get(call.group or "")
    return told or tuple(range(max(facts.world_size, max(ends) + 1)))


def _passed(ends: Mapping[int, End], call: Open) -> list[int]:
    """Ranks that have this collective behind them, or have entered it and went on."""
    return [
        rank
        for rank, end in ends.items()
        if call.key in end.behind or any(one.key == call.key for one in end.calls)
    ]


def over(ends: Mapping[int, End], waiting: tuple[int, ...]) -> int:
    """Until when the waiting is known to have lasted: the first end, else the last instant."""
    bad = [end.time_ns for end in ends.values() if end.is_bad]
    return min(bad) if bad else max(ends[rank].time_ns for rank in waiting)


def patience(
    ends: Mapping[int, End],
    facts: Facts,
    median_step_ns: float | None,
    options: Options,
    gave_up: bool = False,
) -> float:
    """Seconds after which waiting is a hang; ``gave_up`` says that whoever waited has ended."""
    runs = any(end.state in ("running", "stopped") for end in ends.values())
    looked = any(facts.of(rank).stacks for rank in ends)
    least = options.stall_s if runs and not looked and not gave_up else options.stall_ended_s
    if median_step_ns is None:
        return max(least, options.stall_s / 2)
    return max(least, options.stall_times_median * median_step_ns / 1e9)


def _roots(
    ends: Mapping[int, End],
    facts: Facts,
    waits: Mapping[int, Open],
    missing: tuple[int, ...],
    others: Mapping[int, Open],
    group: str | None,
) -> tuple[str, tuple[int, ...]]:
    """Follow who waits for whom to the ranks that wait for nobody.

    Where there are none, all wait for each other: in different calls of one group because they
    took different turns, in several groups in a circle.
    """
    seen: set[int] = set()
    ahead = list(missing)
    roots: set[int] = set()
    while ahead:
        rank = ahead.pop()
        if rank in seen:
            continue
        seen.add(rank)
        call = waits.get(rank)
        if call is None:
            roots.add(rank)
            continue
        there = [r for r, other in waits.items() if _same(other, call)]
        ahead += set(_members(ends, facts, call)) - {*there, *_passed(ends, call)}
    if roots:
        return "missing", tuple(sorted(roots))
    one_group = all(other.group == group for other in others.values())
    return ("mismatch" if one_group else "cycle"), tuple(sorted(others))


def _same(one: Open, other: Open) -> bool:
    return one.key == other.key


def culprit_of(rank: int, ends: Mapping[int, End], facts: Facts, options: Options) -> Culprit:
    end, known = ends.get(rank), facts.of(rank)
    inside = end.inside if end else None
    since = inside.start_ns if inside and inside.kind != "step" else None
    if since is None and end is not None:
        since = end.last_end_ns
    last = known.stacks[-1] if known.stacks else {}
    frame = next((f for s in reversed(known.stacks) if (f := user_frame(s))), None)
    return Culprit(
        rank,
        _state(rank, end, known, facts, options),
        inside,
        since,
        frame,
        innermost(last),
        last.get("wchan"),
        len(known.stacks),
    )


def _state(rank: int, end: End | None, known: RankFacts, facts: Facts, options: Options) -> str:
    """What keeps a rank, from the kernel's word, its heartbeat and its stacks."""
    letters = [str(stack.get("state") or "")[:1] for stack in known.stacks]
    if (end is not None and end.state == "stopped") or (letters and letters[-1] in ("T", "t")):
        return "stopped"
    beats = [f.heartbeat_ns for r, f in facts.ranks.items() if r != rank and f.heartbeat_ns]
    ages = [age for s in known.stacks if (age := s.get("heartbeat_age_ns")) is not None]
    stale = options.heartbeat_stale_s * 1e9
    behind = known.heartbeat_ns is not None and beats and max(beats) - known.heartbeat_ns > stale
    if behind or (ages and ages[-1] > stale):
        return "gil"
    if letters and letters[-1] == "D":
        return "disk"
    if end is not None and end.counter is not None:  # a stack may move and nothing be done
        still = end.time_ns - end.counter.rose_ns
        return "slow" if still <= options.progress_s * 1e9 else "stuck"
    moved = differ(known.stacks)
    if moved is None:
        return "unknown"
    return "slow" if moved else "stuck"


def is_busy(culprit: Culprit) -> bool:
    """Whether the rank works on something else that it will end."""
    return culprit.state == "slow" or (
        culprit.inside is not None and culprit.inside.kind in _BUSY and culprit.state != "stuck"
    )
