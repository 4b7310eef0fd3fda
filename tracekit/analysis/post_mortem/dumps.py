"""What dumps of Flight Recorder show of a hang: who is waited for, and how surely.

A dump is a look at one rank at one moment. That a rank entered a call is evidence on every
backend, that it completed one is on those that record it (not gloo). A rank without a dump is
never said to have done nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tracekit.analysis.post_mortem.dump_rows import Dumps, Part
from tracekit.analysis.post_mortem.dump_shapes import Exchange, alone, circle, exchanges, unmatched
from tracekit.model import Direction, direction

__all__ = ["Accused", "Verdict", "Wait", "judge_dumps"]

Call = tuple[str, int]
"""Group and sequence number."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that ranks are in, and who is not."""

    group: str
    seq: int
    op: str
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    """Members whose dumps end before it."""
    untold: tuple[int, ...]
    """Members that no dump tells of."""
    since_ns: int
    """When the last of the waiting entered it."""
    frame: str | None
    dumps: int


@dataclass(frozen=True, slots=True)
class Accused:
    """A rank at whose end nobody else is to be waited for."""

    rank: int
    wait: Wait | None
    """The call it has not come to."""
    behind: Part | None
    """The oldest call that others ended and it did not."""
    ended_by: tuple[int, ...]
    last: int | None
    """Its own last call in the group of ``wait``."""
    persists: bool


@dataclass(slots=True)
class Verdict:
    """What the dumps show together."""

    mismatches: list[tuple[Call, dict[str, tuple[int, ...]], tuple[Part, ...]]] = field(
        default_factory=list
    )
    exchanges: list[Exchange] = field(default_factory=list)
    accused: list[Accused] = field(default_factory=list)
    untold: list[Wait] = field(default_factory=list)
    """Calls that only ranks without a dump can be missing from."""
    alone: Wait | None = None
    """A call that one rank is in which may be one too many."""
    cycle: list[Wait] = field(default_factory=list)
    closed: bool = True
    """Whether dumps tell whom everybody in the circle waits for."""
    all_in: list[Wait] = field(default_factory=list)
    age_s: float | None = None
    """How long the waiting had lasted when the dumps were written, where files tell."""


def judge_dumps(dumps: Dumps, patience_s: float) -> Verdict:
    """Who is waited for. What is younger than ``patience_s`` may be a job at work, seen by chance:
    where the files tell so, nothing is said of it."""
    verdict = Verdict()
    ages = [(wait, _age(dumps, wait)) for wait in _waits(dumps)]
    waits = [wait for wait, age in ages if age is None or age >= patience_s]
    verdict.age_s = max((age for _, age in ages if age is not None), default=None)
    verdict.mismatches = [*_mismatches(dumps)]
    verdict.exchanges = [*exchanges(dumps)]
    broken = {one.group: one.seq for one in verdict.exchanges}
    broken |= {call[0]: call[1] for call, _, _ in verdict.mismatches}
    waits = [w for w in waits if w.group not in broken or w.seq < broken[w.group]]
    graph = _Graph(dumps, waits, patience_s)
    behind = {} if broken else graph.behind()
    roots = graph.roots() - behind.keys()
    for rank in sorted({*roots, *behind}):
        verdict.accused.append(_accused(rank, dumps, waits, behind.get(rank)))
    if not broken:
        verdict.untold = [*_untold(dumps, waits, bool(verdict.accused))]
        if not verdict.accused:
            verdict.untold = verdict.untold or graph.silent()
        if not verdict.accused and not verdict.untold:
            verdict.cycle = [w for w in waits if w.absent] or graph.circle()
            verdict.closed = not graph.untold & {
                rank for wait in verdict.cycle for rank in wait.absent
            }
            verdict.all_in = [] if verdict.cycle else waits
    verdict.alone = alone(verdict.accused, dumps)
    if verdict.alone is not None:
        verdict.accused = []
    return verdict


def _for_messages(told: Sequence[Part], absent: tuple[int, ...], untold: tuple[int, ...]) -> Wait:
    """Messages of one direction as a call that ranks wait in."""
    return Wait(
        told[0].group, told[0].seq or 0, told[0].op, tuple(sorted(part.rank for part in told)),
        absent, untold, max(part.start_ns for part in told), told[0].frame,
        min(part.dumps for part in told),
    )  # fmt: skip


def _waits(dumps: Dumps) -> Iterator[Wait]:
    """The oldest open collective of every rank in every group, those of one call together."""
    oldest: dict[tuple[int, str], Part] = {}
    for part in dumps.parts:
        if not part.is_open or part.seq is None or part.op in ("send", "recv"):
            continue
        known = oldest.get((part.rank, part.group))
        if known is None or known.seq is None or part.seq < known.seq:
            oldest[part.rank, part.group] = part
    calls: dict[Call, list[Part]] = {}
    for part in oldest.values():
        calls.setdefault((part.group, part.seq or 0), []).append(part)
    for (group, seq), parts in sorted(calls.items()):
        newest = max(parts, key=lambda part: part.start_ns)
        absent, untold = [], []
        for rank in dumps.members.get(group, ()):
            at = dumps.enqueued(rank, group)
            # What was dumped before the others came says nothing about whether it came.
            early = dumps.written_ns.get(rank, newest.start_ns) < newest.start_ns
            if at is None or not dumps.has(rank) or (at < seq and early):
                untold.append(rank)
            elif at < seq:
                absent.append(rank)
        yield Wait(
            group, seq, parts[0].op, tuple(sorted(part.rank for part in parts)), tuple(absent),
            tuple(untold), newest.start_ns, next((p.frame for p in parts if p.frame), None),
            min(part.dumps for part in parts),
        )  # fmt: skip


def _untold(dumps: Dumps, waits: list[Wait], known: bool) -> Iterator[Wait]:
    """For each set of ranks of which no dump tells enough, the call that most others wait in.

    Where somebody is known to be missing, a dump that merely lacks a group is no news.
    """
    found: dict[tuple[int, ...], Wait] = {}
    for wait in waits:
        ranks = tuple(r for r in wait.untold if not (known and dumps.has(r)))
        if ranks and not wait.absent:
            best = found.get(ranks)
            if best is None or len(wait.waiting) > len(best.waiting):
                found[ranks] = replace(wait, untold=ranks)
    yield from found.values()


def _mismatches(
    dumps: Dumps,
) -> Iterator[tuple[Call, dict[str, tuple[int, ...]], tuple[Part, ...]]]:
    """The first call of each group in which ranks do different things, the most told first."""
    calls: dict[Call, list[Part]] = {}
    for part in dumps.parts:
        if part.disagrees and part.seq is not None:
            calls.setdefault((part.group, part.seq), []).append(part)
    for call, parts in sorted(calls.items(), key=lambda item: min(p.start_ns for p in item[1])):
        said: dict[str, list[int]] = {}
        for part in parts:
            said.setdefault(part.disagrees or "", []).append(part.rank)
        if len(said) > 1:
            ordered = sorted(said.items(), key=lambda item: (-len(item[1]), item[1]))
            yield call, {what: tuple(sorted(ranks)) for what, ranks in ordered}, tuple(parts)


def _age(dumps: Dumps, wait: Wait) -> float | None:
    """How long all of the waiting were in it when the first of them was dumped, in seconds."""
    written = [dumps.written_ns.get(rank) for rank in wait.waiting]
    known = [time for time in written if time is not None]
    return (min(known) - wait.since_ns) / 1e9 if known and len(known) == len(written) else None


class _Graph:
    """Which rank waits for which."""

    def __init__(self, dumps: Dumps, waits: list[Wait], patience_s: float) -> None:
        self.dumps, self.waits = dumps, waits
        self.ahead: dict[int, set[int]] = {}
        self.untold: set[int] = set()
        for wait in waits:
            for rank in wait.waiting:
                self.ahead.setdefault(rank, set()).update(wait.absent)
                if wait.untold or not dumps.members.get(wait.group):
                    self.untold.add(rank)
        self.messages = unmatched(dumps, patience_s * 1e9)
        self.opened: dict[tuple[str, int | None], list[Part]] = {}
        for part in dumps.parts:
            if part.is_open:
                self.opened.setdefault((part.group, part.seq), []).append(part)

    def roots(self) -> set[int]:
        """Ranks that are missing from a collective and wait for nobody themselves.

        Where there are none, ranks that are in no call at all and that messages wait for.
        """
        missing = {rank for wait in self.waits for rank in wait.absent}
        found = {rank for rank in missing if not self._waits_for_others(rank)}
        if found or any(wait.untold for wait in self.waits):
            return found
        expected = {rank for ranks in self.messages.values() for rank in ranks}
        busy = {part.rank for part in self.dumps.parts if part.is_open}
        return {rank for rank in expected - busy if self.dumps.has(rank)}

    def silent(self) -> list[Wait]:
        """Messages with ranks of which no dump tells."""
        parts: dict[int, list[Part]] = {}
        for others in self.messages.values():
            for peer, part in others.items():
                if not self.dumps.has(peer):
                    parts.setdefault(peer, []).append(part)
        return [_for_messages(told, (), (peer,)) for peer, told in sorted(parts.items())]

    def circle(self) -> list[Wait]:
        """Messages of ranks that wait for each other in a ring."""
        return [
            _for_messages([self.messages[rank][peer]], (peer,), ())
            for rank, peer in circle(self.messages)
        ]

    def _waits_for_others(self, rank: int) -> bool:
        return bool(self.ahead.get(rank) or rank in self.untold or self.messages.get(rank))

    def behind(self) -> dict[int, tuple[Part, tuple[int, ...]]]:
        """Ranks with an open call that another member, which needed them for it, has ended."""
        found: dict[int, tuple[Part, tuple[int, ...]]] = {}
        for wait in self.waits:
            if direction(wait.op) is not Direction.ALL:
                continue
            still_in = {part.rank for part in self.opened.get((wait.group, wait.seq), ())}
            ended = tuple(
                rank
                for rank in self.dumps.members.get(wait.group, ())
                if (at := self.dumps.completed(rank, wait.group)) is not None
                and at >= wait.seq
                and rank not in still_in
            )
            if not ended:
                continue
            for part in self.opened.get((wait.group, wait.seq), ()):
                known = found.get(part.rank)
                if known is None or part.start_ns < known[0].start_ns:
                    found[part.rank] = part, ended
        return found


def _accused(
    rank: int,
    dumps: Dumps,
    waits: list[Wait],
    behind: tuple[Part, tuple[int, ...]] | None,
) -> Accused:
    missed = [wait for wait in waits if rank in wait.absent]
    wait = max(missed, key=lambda w: (len(w.waiting), -w.since_ns), default=None)
    held = dumps.standing[rank].get(wait.group) if wait is not None else None
    persists = wait is not None and held is not None and min(wait.dumps, held.dumps) > 1
    if wait is None and behind is not None:
        persists = behind[0].dumps > 1
    return Accused(
        rank,
        wait,
        behind[0] if behind else None,
        behind[1] if behind else (),
        held.enqueued if held else None,
        persists,
    )
