"""How far ranks are behind each other, by the messages that all of them write.

A message is a line whose numbers are masked, and which of its kind it is: its step, else how many
came before it. Memory is bounded: of many messages a sample is kept, the same one of every rank.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from zlib import crc32

__all__ = ["Drift", "Lag", "kind_of", "step_at"]

_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,200}|\d{1,200}(?:\.\d{1,200})?(?:[eE][+-]?\d{1,200})?%?")
_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|epoch|batch|шаг|步)\w{0,4}\W{0,3}(\d{1,12})", re.I
)
_KEPT = 200_000
_KINDS = 50_000
_SHARED_AT_LEAST = 3

Source = str | tuple[str, int]
"""Where a line stands, or its file and number."""


def kind_of(body: str) -> int:
    """The kind of a message: what it says without its numbers."""
    return crc32(_NUMBERS.sub("#", body[:200]).encode("utf-8", "replace"))


def step_at(body: str) -> tuple[int, int] | None:
    """Where in a message the number of a step stands."""
    step = _STEP.search(body[:400])
    return step.span(1) if step is not None else None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one rank is behind the median of the others; positive is later."""

    ms: float
    """Median over the messages after it fell behind, else over all."""
    error_ms: float
    """Half the spread of the differences there."""
    before_ms: float
    """The median before that."""
    messages: int
    """How many messages it shares with others."""
    at: str | None
    """The message from which on it is late; None where it always was, or never."""
    source: str | None


@dataclass(slots=True)
class Drift:
    """Collects messages with their times."""

    steps: int = 0
    """How many lines spoke of a step."""
    _times: dict[int, dict[Hashable, tuple[int, Source]]] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict)
    _counts: dict[tuple[Hashable, int], int] = field(default_factory=dict)
    _mask: int = 0
    _entries: int = 0

    def take(self, who: Hashable, body: str, time_ns: int | None, source: str) -> None:
        """Note a line of a rank; only lines with a time count."""
        step = _STEP.search(body[:400])
        self.steps += step is not None
        if time_ns is not None:
            number = int(step[1]) if step is not None else None
            self.note(who, kind_of(body), number, time_ns, body, source)

    def note(
        self,
        who: Hashable,
        kind: int,
        which: int | None,
        time_ns: int,
        body: str | bytes,
        source: str | tuple[str, int],
    ) -> None:
        """Note a line of which kind and step are known; text and source may still be in parts."""
        if which is None:
            if len(self._counts) >= _KINDS and (who, kind) not in self._counts:
                return
            which = self._counts[who, kind] = self._counts.get((who, kind), 0) + 1
        key = crc32(b"%d/%d" % (kind, which))
        if key & self._mask:
            return
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = {}
        if who not in times:
            times[who] = time_ns, source
            if key not in self._texts:
                self._texts[key] = body[:200] if isinstance(body, str) else body[:200].decode()
            self._entries += 1
            if self._entries > _KEPT:
                self._thin()

    def _thin(self) -> None:
        """Keep half of the messages, the same half of every rank."""
        self._mask = self._mask << 1 | 1
        for key in [key for key in self._times if key & self._mask]:
            self._entries -= len(self._times.pop(key))
            self._texts.pop(key, None)

    def rename(self, old: Hashable, new: Hashable) -> None:
        """A rank is known by another name from now on."""
        for times in self._times.values():
            if old in times:
                times.setdefault(new, times.pop(old))

    def lags(self) -> dict[Hashable, Lag]:
        """The lag of each rank that shares messages with others."""
        ranks = {who for times in self._times.values() for who in times}
        found = {}
        per_rank: dict[Hashable, list[tuple[int, float, int, Source]]]
        per_rank = {who: [] for who in ranks}
        for key, times in self._times.items():
            if len(times) < 2:
                continue
            middle = median(time for time, _ in times.values())
            ordered = sorted(time for time, _ in times.values())
            for who, (time, source) in times.items():
                others = middle if len(times) > 4 else _others(ordered, time)
                per_rank[who].append((time, (time - others) / 1e6, key, source))
        for who, rows in per_rank.items():
            if len(rows) >= _SHARED_AT_LEAST:
                found[who] = self._lag(sorted(rows, key=lambda row: row[:3]))
        return found

    def _lag(self, rows: list[tuple[int, float, int, Source]]) -> Lag:
        values = [value for _, value, _, _ in rows]
        cut = _change(values)
        early, late = values[:cut], values[cut:]
        if not cut:
            return Lag(median(values), _spread(values), median(values), len(values), None, None)
        _, _, key, source = rows[cut]
        place = source if isinstance(source, str) else f"{source[0]}:{source[1]}"
        return Lag(
            median(late), _spread(late), median(early), len(values), self._texts.get(key), place
        )


def _others(ordered: list[int], own: int) -> float:
    rest = list(ordered)
    rest.remove(own)
    return float(median(rest))


def _spread(values: list[float]) -> float:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2


def _change(values: list[float]) -> int:
    """Where a rank falls behind: the place that splits late from early best; 0 for nowhere."""
    total, count = sum(values), len(values)
    best, at, before = 0.0, 0, 0.0
    for place in range(1, count):
        before += values[place - 1]
        step = (total - before) / (count - place) - before / place
        weight = step * step * place * (count - place)
        if step > 0 and weight > best:
            best, at = weight, place
    if not at:
        return 0
    early, late = values[:at], values[at:]
    noise = max(_spread(early), _spread(late), 1.0)
    return at if median(late) - median(early) > 4 * noise else 0
