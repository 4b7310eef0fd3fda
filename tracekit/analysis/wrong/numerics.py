"""Whether numbers stay numbers: where infinite or undefined values came up first, and what limits
of number types were met."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tracekit.analysis.queries import query
from tracekit.analysis.record import Record, number
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say

__all__ = ["numeric_findings"]

_BEFORE = ("loss", "gradient_nonfinite")
"""What a rank tells of itself, before anything is put together with the other ranks'."""
_SCALES = ("loss_scale", "grad_scale")
_LEAST_STEPS = 20


@dataclass(frozen=True, slots=True)
class _Odd:
    """The odd values of one rank under one name."""

    events: int
    odd: int
    first: int | None
    last: int | None
    end: int | None
    """The last step in which it could have been seen."""
    total: float

    @property
    def lasts(self) -> bool:
        """Whether it stayed so to the end."""
        if self.odd < 2 or self.first is None or self.last is None or self.end is None:
            return False
        return self.last >= self.end and 2 * self.odd > self.last - self.first


Odd = Mapping[str, Mapping[int, _Odd]]


def numeric_findings(record: Record) -> Iterator[Finding]:
    """What is wrong with losses, gradients and the factor that keeps them in range."""
    odd: dict[str, dict[int, _Odd]] = {}
    rows = record.engine.sql(query("odd_values", attempt=record.attempt)).to_pylist()
    losses = {row["rank"]: row["end_step"] for row in rows if row["name"] == "loss"}
    for row in rows:
        shift = record.shifts.get(row["rank"], 0)
        if row["name"].startswith("gradient_"):  # told only where there were some
            row["end_step"] = losses.get(row["rank"], (record.run.last_step or 0) - 2)
        first, last, end = (
            None if row[name] is None else row[name] - shift
            for name in ("first_step", "last_step", "end_step")
        )
        odd.setdefault(row["name"], {})[row["rank"]] = _Odd(
            row["events"], int(row["odd"]), first, last, end, float(row["total"] or 0)
        )
    if odd:
        yield from _nonfinite(record, odd)
        yield from _saturated(odd)
        yield from _scales(record, odd)


# Not finite


def _nonfinite(record: Record, odd: Odd) -> Iterator[Finding]:
    """Who had a value that is not finite first, before values of ranks were put together."""
    scaled = {rank for name in _SCALES for rank in odd.get(name, ())}
    concerned: dict[str, list[int]] = {}
    for name in (*_BEFORE, "grad_norm"):
        for rank, one in odd.get(name, {}).items():
            # A scale that is looked for overflows now and then, and its update is left out.
            sought = name != "loss" and rank in scaled and not one.lasts
            if one.odd and one.first is not None and not sought:
                concerned.setdefault(name, []).append(rank)
    told = {name: [odd[name][rank] for rank in ranks] for name, ranks in concerned.items()}
    firsts = {name: min(one.first or 0 for one in ones) for name, ones in told.items()}
    if not firsts:
        return
    step = min(firsts.values())
    values = _Values(record, step)
    origin, certainty = values.origin()
    ranks = tuple(sorted({rank for listed in concerned.values() for rank in listed}))
    lasts = any(one.lasts for ones in told.values() for one in ones)
    last = max(one.last or step for ones in told.values() for one in ones)
    victims = tuple(rank for rank in ranks if rank not in origin)
    host = record.facts.of(origin[0]).host if len(origin) == 1 else ""
    if certainty is Certainty.CANNOT_TELL:
        key = "reduced" if not values.before else "all"
        title = say(f"numeric.nonfinite.{key}", step=step, ranks=ranks_words(ranks))
        advice: tuple[Words, ...] = (say("advice.nonfinite.before"),)
        if key == "all":
            advice = (say("advice.nonfinite.all", step=step),)
    else:
        title = say(
            "numeric.nonfinite.first", ranks=ranks_words(origin), step=step,
            what=say(f"numeric.{values.what}"), victims=_victims(victims),
        )  # fmt: skip
        advice = (
            say("advice.nonfinite.batch", ranks=ranks_words(origin), step=step),
            say("advice.nonfinite.skip"),
        )
    yield Finding(
        "numeric.nonfinite",
        Severity.CRITICAL if lasts else Severity.WARNING,
        certainty,
        title,
        ranks=origin or ranks,
        steps=(step, last),
        evidence={
            "first_step": step,
            "first_ranks": list(origin),
            "ranks": list(ranks),
            "seen_in": sorted(concerned),
            "events": sum(one.odd for ones in told.values() for one in ones),
            "to_the_end": lasts,
            "skipped_by": values.skipped,
            "values": values.shown(),
            "host": host or None,
        },
        advice=advice,
    )


def _victims(ranks: Sequence[int]) -> Words:
    return say("numeric.victims", ranks=ranks_words(ranks)) if ranks else say("numeric.no_victims")


class _Values:
    """What ranks recorded in the first step with an odd value."""

    def __init__(self, record: Record, step: int) -> None:
        shifts = [record.shifts.get(rank, 0) for rank in record.ranks]
        low, high = step + min([0, *shifts]), step + max([0, *shifts])
        rows = record.engine.sql(
            query("values_in", attempt=record.attempt, first=low, last=high)
        ).to_pylist()
        self.ranks = record.ranks
        self.together = any(
            (number(one.get("workers")) or 0) > 1
            for rank in record.ranks
            for one in record.facts.of(rank).told("strategy")
        )
        """Whether ranks may record what was made of all of theirs as their own."""
        self.sound: dict[str, set[int]] = {}
        self.odd: dict[str, set[int]] = {}
        self.skipped: list[int] = []
        self._shown: dict[int, Any] = {}
        for row in rows:
            rank, name = row["rank"], row["name"]
            if row["step"] - record.shifts.get(rank, 0) != step:
                continue
            if name == "optimizer_skipped":
                self.skipped = sorted({*self.skipped, rank})
                continue
            attributes = dict(row["attributes"] or ())
            self.together &= name != "loss" or "local" not in attributes
            name, is_odd = _judge(name, row["value"], attributes)
            (self.odd if is_odd else self.sound).setdefault(name, set()).add(rank)
            if name == "loss" and rank not in self._shown:
                self._shown[rank] = row["value"]

    @property
    def before(self) -> bool:
        """Whether any odd value is one from before the reduction."""
        told = [name for name in _BEFORE if self.odd.get(name)]
        if self.together and told == ["loss"] and self.odd["loss"] == set(self.ranks):
            return False
        return bool(told)

    @property
    def what(self) -> str:
        """Which value shows it: one that some ranks have and others not, the loss first."""
        told = [name for name in _BEFORE if self.odd.get(name)]
        return next((name for name in told if self.odd[name] != set(self.ranks)), told[0])

    def origin(self) -> tuple[tuple[int, ...], Certainty]:
        """The ranks that it began on, where others were sound in that step, and how sure it is."""
        if not self.before:
            return (), Certainty.CANNOT_TELL
        odd = self.odd[self.what]
        if len(self.ranks) == 1:
            return tuple(sorted(odd)), Certainty.PROVEN
        others = set(self.ranks) - odd
        if not others:
            return (), Certainty.CANNOT_TELL
        sound = self.sound.get(self.what, set()) | self.sound.get("loss", set())
        return tuple(sorted(odd)), Certainty.PROVEN if others <= sound else Certainty.LIKELY

    def shown(self) -> dict[str, str]:
        """The losses of that step as text, since JSON has no infinite numbers."""
        return {str(rank): f"{value:.6g}" for rank, value in sorted(self._shown.items())[:16]}


def _judge(name: str, value: float | None, attributes: Mapping[str, str]) -> tuple[str, bool]:
    """What a value is evidence of: of what its rank had itself, or of what all have together."""
    if name == "gradient_nonfinite":
        return name, (value or 0) > 0
    odd = value is not None and not math.isfinite(value)
    local = _numbers(attributes.get("local"))
    if name == "loss" and local:
        return name, not all(map(math.isfinite, local))
    if name == "loss" and attributes.get("reduced") not in (None, '"none"', "null", "false"):
        return "reduced", odd
    return name, odd


def _numbers(text: str | None) -> list[float]:
    """The numbers of an attribute; those that are not finite may be words in JSON."""
    try:
        told = json.loads(text) if text else []
        listed = told if isinstance(told, list) else [told]
        return [math.nan if one is None else float(one) for one in listed]
    except (TypeError, ValueError):
        return []


# At the limit


def _saturated(odd: Odd) -> Iterator[Finding]:
    """Values that stand exactly at the largest of their type: something clips them there."""
    found = {rank: one for rank, one in odd.get("gradient_saturated", {}).items() if one.odd}
    if not found:
        return
    ranks = tuple(sorted(found))
    steps = max(one.odd for one in found.values())
    known = [at for one in found.values() for at in (one.first, one.last) if at is not None]
    yield Finding(
        "numeric.saturated",
        Severity.WARNING if steps > 2 else Severity.INFO,
        Certainty.PROVEN,
        say("numeric.saturated", ranks=ranks_words(ranks), steps=steps),
        ranks=ranks,
        steps=(min(known), max(known)) if known else None,
        evidence={
            "values": {str(rank): one.total for rank, one in found.items()},
            "steps": {str(rank): one.odd for rank, one in found.items()},
        },
        advice=(say("advice.saturated"),),
    )


# The scale of the loss


@dataclass(frozen=True, slots=True)
class _Fall:
    """The longest fall of a scale without a rise."""

    drops: int
    highest: float
    lowest: float
    first: int | None
    last: int | None
    at_end: bool


def _scales(record: Record, odd: Odd) -> Iterator[Finding]:
    """A scale that only falls, updates that are left out too often, scales that differ."""
    if not any(name in odd for name in (*_SCALES, "optimizer_skipped")):
        return
    options = record.options
    series: dict[int, list[tuple[int | None, float]]] = {}
    for row in record.engine.sql(query("scales", attempt=record.attempt)).to_pylist():
        shift = record.shifts.get(row["rank"], 0)
        step = None if row["step"] is None else row["step"] - shift
        series.setdefault(row["rank"], []).append((step, row["value"]))
    falls = {rank: _fall(told) for rank, told in series.items()}
    bad = {
        rank: fall
        for rank, fall in falls.items()
        if fall.drops >= options.loss_scale_drops and fall.lowest <= options.loss_scale_tiny
    }
    if bad:
        yield _collapse(bad, odd)
    else:
        yield from _skips(record, odd)
    yield from _differ(record, series)


def _fall(told: Sequence[tuple[int | None, float]]) -> _Fall:
    best = run = _Fall(0, told[0][1], told[0][1], told[0][0], told[0][0], True)
    for (_, before), (step, value) in pairwise(told):
        if value < before:
            run = _Fall(run.drops + 1, run.highest, value, run.first, step, True)
        else:
            run = _Fall(0, value, value, step, step, True)
        best = run if run.drops >= best.drops else best
    return best if best is run else _Fall(
        best.drops, best.highest, best.lowest, best.first, best.last, False
    )  # fmt: skip


def _collapse(bad: Mapping[int, _Fall], odd: Odd) -> Finding:
    worst = min(bad.values(), key=lambda fall: fall.lowest)
    ranks = tuple(sorted(bad))
    sources = sorted(rank for rank, one in odd.get("gradient_nonfinite", {}).items() if one.odd)
    known = [at for fall in bad.values() for at in (fall.first, fall.last) if at is not None]
    return Finding(
        "numeric.loss_scale",
        Severity.CRITICAL if worst.at_end else Severity.WARNING,
        Certainty.PROVEN,
        say(
            "numeric.loss_scale.collapse", ranks=ranks_words(ranks), highest=worst.highest,
            lowest=worst.lowest, drops=worst.drops,
        ),
        ranks=ranks,
        steps=(min(known), max(known)) if known else None,
        evidence={
            "from": worst.highest,
            "to": worst.lowest,
            "drops": worst.drops,
            "falls_to_the_end": worst.at_end,
            "gradients_not_finite_on": sources,
        },
        advice=(say("advice.loss_scale"),),
    )  # fmt: skip


def _skips(record: Record, odd: Odd) -> Iterator[Finding]:
    """Updates left out more often than the search for a scale explains."""
    options = record.options
    found = {rank: one.odd for rank, one in odd.get("optimizer_skipped", {}).items()}
    steps = record.run.steps
    often = [
        rank for rank, count in found.items() if steps and count / steps > options.skipped_share
    ]
    if not often or steps < _LEAST_STEPS or max(found.values()) < options.loss_scale_drops:
        return
    yield Finding(
        "numeric.loss_scale",
        Severity.WARNING,
        Certainty.PROVEN,
        say(
            "numeric.loss_scale.skips", ranks=ranks_words(often), count=max(found.values()),
            steps=steps,
        ),
        ranks=tuple(sorted(often)),
        evidence={"skipped": {str(rank): count for rank, count in found.items()}, "steps": steps},
        advice=(say("advice.loss_scale"),),
    )  # fmt: skip


def _differ(
    record: Record, series: Mapping[int, Sequence[tuple[int | None, float]]]
) -> Iterator[Finding]:
    """The first step after which two ranks scale by other factors."""
    run = record.run
    if len(series) < 2 or any(step is None for told in series.values() for step, _ in told):
        return
    begins = max(told[0][0] or 0 for told in series.values())
    ends = (run.first_step or 0) + run.steps - 1  # as long as all ranks were there
    for step in sorted({step or 0 for told in series.values() for step, _ in told}):
        if not begins <= step <= ends:
            continue
        now = {
            rank: [value for at, value in told if (at or 0) <= step][-1]
            for rank, told in series.items()
        }
        if len(set(now.values())) > 1:
            yield Finding(
                "numeric.loss_scale",
                Severity.WARNING,
                Certainty.PROVEN,
                say("numeric.loss_scale.differs", step=step),
                ranks=tuple(sorted(now)),
                steps=(step, step),
                evidence={"scales": {str(rank): value for rank, value in now.items()}},
                advice=(say("advice.loss_scale.sharded"),),
            )
            return
