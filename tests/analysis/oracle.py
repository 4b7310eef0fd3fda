"""The definitions of docs/numbers.md, instant by instant: slow, and too simple to be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WORK = ("backward", "optimizer", "forward")
REST = ("data", "checkpoint", "eval", "compile", "gc")


@dataclass(frozen=True)
class Span:
    """A span with whole times."""

    rank: int
    step: int | None
    kind: str
    start: int
    end: int
    lane: str = "thread:main"
    id: int = 0
    parent: int | None = None
    op: str | None = None
    seq: int = 0
    root: int | None = None

    def covers(self, instant: int) -> bool:
        return self.start <= instant < self.end

    def holds(self, other: Span) -> bool:
        return self.lane == other.lane and self.start <= other.start and other.end <= self.end

    @property
    def is_blocking(self) -> bool:
        return not self.lane.startswith("group:")


@dataclass(frozen=True)
class Wait:
    """A communication and until when it waits for others and for the communicator."""

    span: Span
    ready: int
    service: int


def partition(spans: Sequence[Span], ranks: int) -> dict[tuple[int, int], dict[str, int]]:
    """Nanoseconds of each class in each step of each rank."""
    waits = timed(spans, ranks)
    found = {}
    for step in (span for span in spans if span.kind == "step"):
        assert step.step is not None
        mine = [span for span in spans if span.rank == step.rank]
        theirs = [wait for wait in waits if wait.span.rank == step.rank]
        classes = dict.fromkeys(("blocked", "communication", *CLASSES), 0)
        tails = [(start, end) for start, end, number in tails_of(mine) if number == step.step]
        for instant in range(step.start, step.end):
            for name in classes_at(instant, mine, theirs, tails):
                classes[name] += 1
        found[step.rank, step.step] = classes
    return found


CLASSES = ("compute", "wait", "queue", "transfer", *REST, "other")


def classes_at(
    instant: int, mine: Sequence[Span], waits: Sequence[Wait], tails: Sequence[tuple[int, int]]
) -> Iterable[str]:
    """The one class of an instant, and whether it is blocked or communicates at all."""
    flying = [wait for wait in waits if wait.span.covers(instant)]
    in_tail = any(start <= instant < end for start, end in tails)
    blocked = in_tail or any(wait.span.is_blocking for wait in flying)
    if blocked:
        yield "blocked"
    if flying or in_tail:
        yield "communication"
    work = [span for span in mine if span.kind in WORK]
    rest = [span for span in mine if span.kind in REST and span.covers(instant)]
    interrupted = any(phase.holds(span) for span in rest for phase in work)
    computes = any(span.covers(instant) for span in work) and not interrupted and not blocked
    if computes:
        yield "compute"
    elif flying or in_tail:
        if any(instant < wait.ready for wait in flying):
            yield "wait"
        elif any(instant < wait.service for wait in flying):
            yield "queue"
        else:
            yield "transfer"
    else:
        yield next((kind for kind in REST if any(s.kind == kind for s in rest)), "other")


def tails_of(mine: Sequence[Span]) -> Iterable[tuple[int, int, int | None]]:
    """From when the last bucket of a backward was ready to its return, and its step."""
    for span in mine:
        if span.kind == "backward":
            ready = [
                child.start
                for child in mine
                if child.kind == "comm" and not child.is_blocking and child.parent == span.id
            ]
            if ready and max(ready) < span.end:
                yield max(ready), span.end, span.step


def timed(spans: Sequence[Span], ranks: int) -> list[Wait]:
    """All communications with their waits."""
    calls: dict[tuple[str | None, int], list[Span]] = {}
    for span in spans:
        if span.kind == "comm" and span.step is not None:
            calls.setdefault((span.op, span.seq), []).append(span)
    order = sorted(calls.values(), key=lambda call: (last(call), call[0].seq, call[0].op or ""))
    found = []
    previous = None
    for call in order:
        for span in call:
            ready = min(span.end, max(span.start, awaited(span, call, ranks)))
            service = ready if previous is None else max(ready, min(span.end, previous))
            found.append(Wait(span, ready, service))
        ended = max(span.end for span in call)
        previous = ended if previous is None else max(previous, ended)
    stepless = [span for span in spans if span.kind == "comm" and span.step is None]
    return found + [Wait(span, span.start, span.start) for span in stepless]


def last(call: Iterable[Span]) -> int:
    return max(span.start for span in call)


def awaited(span: Span, call: Sequence[Span], ranks: int) -> int:
    """When those had come that this member waits for."""
    if len(call) != ranks:
        return span.start
    if span.op == "broadcast":
        root = next(other for other in call if other.rank == span.root)
        return span.start if span.rank == span.root else root.start
    if span.op == "reduce":
        return last(call) if span.rank == span.root else span.start
    return last(call)
