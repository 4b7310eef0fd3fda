"""Which steps a profile shows: those the loop marked, else the calls of the function it repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.adapters.xplane._profile import Profile

__all__ = ["Step", "aligned", "evaluations", "steps_of"]

_NO_TRAINING = ("test", "predict", "eval", "evaluate", "validation")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rank; ``counted`` when its number is ours and not the loop's."""

    number: int
    start_ns: int
    end_ns: int
    counted: bool = False


def steps_of(profile: Profile) -> list[Step]:
    """The steps in order, each number once; none where the profile shows no loop."""
    names = Counter(mark.name for mark in profile.marked if mark.name not in _NO_TRAINING)
    if names:
        chosen, _ = names.most_common(1)[0]
        found = {
            mark.number: Step(mark.number, mark.start_ns, mark.end_ns)
            for mark in profile.marked
            if mark.name == chosen
        }
        return _apart(sorted(found.values(), key=lambda step: step.start_ns))
    return _called(profile)


def evaluations(profile: Profile) -> list[tuple[int, int]]:
    """When steps ran that do not train."""
    return [(m.start_ns, m.end_ns) for m in profile.marked if m.name in _NO_TRAINING]


def _apart(steps: list[Step]) -> list[Step]:
    """Steps that do not reach into the next one."""
    return [
        replace(step, end_ns=min(step.end_ns, after.start_ns))
        for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True)
        if after is not step
    ] + steps[-1:]


def _called(profile: Profile) -> list[Step]:
    """A step from the end of one call of the function that trains to the end of the next: input is
    taken before it. It is the function in whose calls most time is spent."""
    functions = {
        name: sorted(calls)
        for name, calls in profile.functions.items()
        if len(calls) > 1 and not any(word in name for word in _NO_TRAINING)
    }
    if not functions:
        return []
    calls = max(functions.values(), key=lambda calls: sum(end - start for start, end in calls))
    steps: list[Step] = []
    end = min([calls[0][0], *(start for start, _ in profile.data if start >= profile.first_ns)])
    for start, until in calls:
        if until > end and start >= (steps[-1].end_ns if steps else 0):
            steps.append(Step(len(steps), end, until, counted=True))
            end = until
    return steps


def aligned(steps: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """Number the steps of several hosts alike where the numbers are ours: members of a collective
    are in it together, so the same steps overlap most. Hosts' clocks may differ by less."""
    if not steps:
        return []
    first = max(steps, key=len)
    return [
        [replace(step, number=step.number + _shift(first, own)) for step in own]
        if own and own is not first and own[0].counted and first[0].counted
        else list(own)
        for own in steps
    ]


def _shift(first: Sequence[Step], own: Sequence[Step]) -> int:
    """By how much to move the numbers so that steps of one number overlap most."""
    base = np.array([(step.start_ns, step.end_ns) for step in first])
    mine = np.array([(step.start_ns, step.end_ns) for step in own])
    best, found = -1, 0
    for shift in sorted(range(-len(own), len(first) + 1), key=abs):
        low, high = max(0, shift), min(len(first), len(own) + shift)
        if low >= high:
            continue
        one, other = base[low:high], mine[low - shift : high - shift]
        common = np.minimum(one[:, 1], other[:, 1]) - np.maximum(one[:, 0], other[:, 0])
        overlap = int(np.maximum(common, 0).sum())
        if overlap > best:
            best, found = overlap, shift
    return found
