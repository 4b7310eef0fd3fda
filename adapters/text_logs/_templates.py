"""Ordinary lines at a glance: of lines that differ in their digits only, one is taken apart.

Nearly all lines of a log are of few kinds, such as that of a training's step. A line with its
digits made alike is a key; one line of a key tells where rank, time and step stand in all
of them, and that none of them can be a message of the table. Everything else is read as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracekit.adapters.text_logs._drift import kind_of, step_at
from tracekit.adapters.text_logs._last_error import announces
from tracekit.adapters.text_logs._patterns import Table
from tracekit.adapters.text_logs._tags import Places, Tagged, glued, places_of, tagged

__all__ = ["LIKE", "Template", "Templates", "clock_of"]

LIKE = bytes.maketrans(b"123456789", b"000000000")
"""Makes the digits of a line alike."""
_LONGEST = 2048
_MOST = 1 << 15
_ODD = (b"\x1b", b"\r", b"\0", b"0x")
"""What is drawn over, or makes other characters than digits a part of a number."""
_BREAKS = ("Traceback (most", "During", "The above", "Failures:", "Root Cause (first", "RankID")
"""What begins something of several lines, or tells the rank elsewhere."""


@dataclass(frozen=True, slots=True)
class Template:
    """What all lines of one key have in common."""

    is_skipped: bool
    """Whether others read them."""
    places: Places
    kind: int
    """Their kind among messages that ranks have in common."""
    step: tuple[int, int] | None
    """Where the number of the step stands in the line."""
    blank: bool
    """Whether nothing follows the prefix."""


class Templates:
    """Templates by key, of one table of messages."""

    def __init__(self, table: Table, is_skipped: Callable[[str], bool]) -> None:
        self._is_skipped = is_skipped
        self._hints = table.hints_like(LIKE)
        self.known: dict[bytes, Template | None] = {}
        """None: lines of this key are read one by one."""
        self._once: set[bytes] = set()

    def meet(self, key: bytes, raw: bytes) -> None:
        """Learn the template of a key from the second line that has it: most keys of a log without
        templates never come again."""
        if key not in self._once:
            if len(self._once) >= _MOST:
                self._once.clear()
            self._once.add(key)
            return
        if len(self.known) >= _MOST:
            self.known.clear()
        self.known[key] = self._template(key, raw)

    def _template(self, key: bytes, raw: bytes) -> Template | None:
        if len(raw) > _LONGEST or not raw.isascii() or any(odd in key for odd in _ODD):
            return None
        line = raw.decode("ascii")
        if self._is_skipped(line):
            return Template(True, Places(None, None, None, (), 0), 0, None, True)
        if any(mark in line for mark in _BREAKS) or glued(line) not in ([line], []):
            return None
        tag = tagged(line)
        places = places_of(line)
        body = line[places.body :]
        if places.body + len(tag.body) != len(line) or not _same(tag, places, line):
            return None
        if places.rank is not None and places.local is not None:
            return None
        if places.dated is None and tag.stamp is not None and tag.stamp.zone_s is not None:
            return None
        if tag.severity or body.startswith("[PG ") or announces(body) or self._may_be_told(key):
            return None
        step = step_at(body)
        at = (places.body + step[0], places.body + step[1]) if step is not None else None
        return Template(False, places, kind_of(body), at, not body.strip())

    def _may_be_told(self, key: bytes) -> bool:
        return any(hint in key for hint in self._hints)


def _same(tag: Tagged, places: Places, line: str) -> bool:
    """Whether the places tell what the parts of the line do."""
    rank = int(line[slice(*places.rank)]) if places.rank else None
    local = int(line[slice(*places.local)]) if places.local else None
    second = clock_of(line.encode(), places.clock) if places.clock else None
    told = tag.stamp.second if tag.stamp is not None else None
    return (tag.rank, tag.local, told) == (rank, local, second)


def clock_of(raw: bytes, clock: tuple[tuple[int, int], ...]) -> float | None:
    """Seconds since midnight by digits at these places; None for a time that cannot be."""
    (a, b), (c, d), (e, f), *more = clock
    hour, minute, second = int(raw[a:b]), int(raw[c:d]), int(raw[e:f])
    if hour > 23 or minute > 59 or second > 59:
        return None
    whole = hour * 3600 + minute * 60 + second
    if not more:
        return whole + 0.0
    a, b = more[0]
    return whole + int(raw[a:b]) / float(10 ** (b - a))
