"""From times as lines write them to Unix nanoseconds: years, days, midnights left out."""

from __future__ import annotations

from calendar import timegm
from dataclasses import dataclass, field
from functools import lru_cache
from time import gmtime

from tracekit.adapters.text_logs._tags import Stamp

__all__ = ["Dates"]

_DAY = 86_400
_HALF = 43_200.0


@lru_cache(maxsize=256)
def _day(year: int, month: int, day: int) -> int:
    return timegm((year, month, day, 0, 0, 0))


@dataclass(slots=True)
class Dates:
    """The calendar of one log: times without a zone are taken as they stand."""

    written_s: float
    """When the files were written last: what is not said of the date is taken from it."""
    day_s: int | None = None
    """Start of the day of the last line that had a date."""
    _last: dict[object, tuple[float, int]] = field(default_factory=dict)
    """Last time of day of each rank, and how many midnights it saw."""

    def unix_ns(self, stamp: Stamp, who: object = None) -> int | None:
        """The time of a line; None for one that cannot be."""
        if stamp.month is not None and stamp.day is not None:
            day = self._dated(stamp)
            if day is None:
                return None
            self.day_s = day if self.day_s is None else self.day_s
        else:
            if self.day_s is None:
                self.day_s = int(self.written_s) // _DAY * _DAY
            last, midnights = self._last.get(who, (stamp.second, 0))
            if stamp.second < last - _HALF:
                midnights += 1
            elif stamp.second > last + _HALF and midnights:  # a line from before midnight, late
                return self._ns(self.day_s + (midnights - 1) * _DAY, stamp)
            self._last[who] = stamp.second, midnights
            day = self.day_s + midnights * _DAY
        return self._ns(day, stamp)

    @staticmethod
    def _ns(day: int, stamp: Stamp) -> int:
        return (day - (stamp.zone_s or 0)) * 1_000_000_000 + round(stamp.second * 1e9)

    def _dated(self, stamp: Stamp) -> int | None:
        month, day = stamp.month or 0, stamp.day or 0
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        year = stamp.year
        if year is None:
            year = gmtime(self.written_s).tm_year
            if _day(year, month, day) > self.written_s + 2 * _DAY:
                year -= 1
        if not 1970 <= year <= 2261:
            return None
        return _day(year, month, day)
