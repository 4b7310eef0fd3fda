"""What stands before a message: the rank in the forms launchers and libraries use, and the time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["Places", "Stamp", "Tagged", "from_path", "glued", "places_of", "tagged"]

_MONTH = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time as it is written; what is not written is None."""

    second: float
    """Seconds since midnight."""
    year: int | None = None
    month: int | None = None
    day: int | None = None
    zone_s: int | None = None
    """Seconds east of UTC, where the line says so."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A line apart: who wrote it, when, and what."""

    body: str
    rank: int | None = None
    local: int | None = None
    stamp: Stamp | None = None
    host: str | None = None
    severity: str = ""
    """I, W, E, F or C where the line has it."""


_START = re.compile(
    r"[\s\[(|<\d]|RANK|[Rr]ank|[IWEFC]\d|std|[A-Z][a-z]{2} {1,4}(?:\d|[A-Z][a-z]{2} )"
)
"""What a prefix may begin with: lines that begin otherwise have none."""

_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_LEAD = r"[\s\[(|<]{0,8}"
_TRAIL = r"(?:\s?(?P<z>Z|UTC|[+-]\d\d:?\d\d))?[\])>]?(?:\s?[:|,-](?=\s))?(?: ?\| ?| )?"
_STAMPS = tuple(
    re.compile(text)
    for text in (
        _LEAD + r"(?P<Y>\d{4})[-/.](?P<M>\d\d?)[-/.](?P<D>\d\d?)[ T_]{1,2}" + _CLOCK + _TRAIL,
        _LEAD + _CLOCK + _TRAIL,
        _LEAD + r"(?P<Y>\d{4})年(?P<M>\d\d?)月(?P<D>\d\d?)日 ?" + _CLOCK + _TRAIL,
        r"\[?(?:(?P<w>Mon|Tue|Wed|Thu|Fri|Sat|Sun) )(?P<N>[A-Z][a-z]{2}) {1,4}(?P<D>\d{1,2}) "
        + _CLOCK
        + r" (?P<Y>\d{4})\]? ?",
        r"(?P<N>[A-Z][a-z]{2}) {1,4}(?P<D>\d{1,2}) " + _CLOCK + r" (?P<host>[\w.-]{1,255}) ",
    )
)
_C10 = re.compile(
    r"\[?(?P<sev>[IWEFC])(?:(?P<M>\d{1,2})(?P<D>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"\.(?P<f>\d{1,9}))?(?: {1,8}\d{1,10})? (?P<src>[\w./-]{1,200}\.(?:cpp|hpp|h|cc|py)):\d{1,6}\]"
    r" ?"
)
_RANKS = tuple(
    re.compile(text)
    for text in (
        r"\[rank ?[=:]?(?P<rank>\d{1,6})\]:? ?(?:\|\| ?)?",
        r"\[\d{1,6},(?P<rank>\d{1,6})\](?:<std(?:out|err|diag)>)?: ?",
        r"\[(?P<rank>\d{1,6})\]: ?",
        r"[\[(<]?(?:RANK|Rank|rank)[ _]?(?:ID |id )?[=:#]? ?(?P<rank>\d{1,6}) ?[\])>]?[:|] ?",
        r"[\[(<](?:RANK|Rank|rank|RankID)[ _]?[=:#]? ?(?P<rank>\d{1,6})[\])>][:|,]? ?",
        r"RANK (?P<rank>\d{1,6}) (?=\d\d:\d\d:\d\d)",
        r" {0,6}(?P<rank>\d{1,6}): ",
    )
)
_LOCAL = re.compile(r"\[[A-Za-z_]{1,64}(?P<local>\d{1,6})\]: ?")
_ANYWHERE = re.compile(r"\(RankID (?P<rank>\d{1,6})\)")
_NOISE = re.compile(r"(?:std(?:out|err) [FP] )|(?:\(\w{1,64} pid=\d{1,10}(?:, ip=[\d.]{7,15})?\) )")
_GLUED = re.compile(r"\[rank\d{1,6}\]:(?=\[|Traceback|\s)")
_PATHS = tuple(
    re.compile(text)
    for text in (
        r"(?:^|[^a-z])rank[-_ .=]?(\d{1,6})(?!\d)",
        r"(?:^|[^a-z])(?:worker|task|proc(?:ess)?)[-_ .=]?(\d{1,6})(?!\d)",
        r"(?:^|/)(\d{1,6})/(?:stderr|stdout|error)(?:\.log|\.json)?$",
        r"(?:\.|_)(\d{1,6})\.(?:log|out|err|txt)$",
    )
)
_ATTEMPT = re.compile(r"(?:^|/)attempt[_-](\d{1,4})(?:/|$)")


def tagged(line: str) -> Tagged:
    """Take a line apart; prefixes may stand in any order, up to eight of them."""
    rank: int | None = None
    local: int | None = None
    stamp: Stamp | None = None
    host, severity, place = None, "", 0
    for _ in range(8):
        rest = line[place : place + 512]
        if not rest or (rest[0] == " " and place and rest[:2] == "  "):
            break  # what is indented belongs to the message
        if _START.match(rest) is None:
            break
        if rank is None and rest[:5] == "[rank" and (match := _RANKS[0].match(rest)) is not None:
            rank = int(match["rank"])
            place += match.end()
            continue
        if rest[0] in "[IWEFC" and (match := _C10.match(rest)) is not None:
            stamp = _stamp(match) if match["s"] else stamp
            severity = match["sev"]
            place += match.end()
            break
        if stamp is None and (match := _first(_STAMPS, rest)) is not None:
            stamp = _stamp(match)
            host = match.groupdict().get("host") or host
        elif (match := _first(_RANKS, rest)) is not None and rank is None:
            rank = int(match["rank"])
        elif (match := _LOCAL.match(rest)) is not None and local is None:
            local = int(match["local"])
        elif (match := _NOISE.match(rest)) is None:
            break
        place += match.end()
    body = line[place:]
    if rank is None and "RankID" in body and (match := _ANYWHERE.search(body, 0, 400)):
        rank = int(match["rank"])
    return Tagged(body, rank, local, stamp, host, severity)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a prefix stand in a line."""

    rank: tuple[int, int] | None
    local: tuple[int, int] | None
    dated: tuple[int, int] | None
    """The whole of a stamp that has a date."""
    clock: tuple[tuple[int, int], ...]
    """Hours, minutes, seconds and, where there are, their fractions."""
    body: int


def places_of(line: str) -> Places:
    """Where ``tagged`` finds what it does, for lines without a severity."""
    rank: tuple[int, int] | None = None
    local: tuple[int, int] | None = None
    stamp: tuple[re.Match[str], int] | None = None
    place = 0
    for _ in range(8):
        rest = line[place : place + 512]
        if not rest or (rest[0] == " " and place and rest[:2] == "  "):
            break
        if _START.match(rest) is None:
            break
        if rank is None and rest[:5] == "[rank" and (match := _RANKS[0].match(rest)) is not None:
            rank = place + match.start("rank"), place + match.end("rank")
        elif stamp is None and (match := _first(_STAMPS, rest)) is not None:
            stamp = match, place
        elif (match := _first(_RANKS, rest)) is not None and rank is None:
            rank = place + match.start("rank"), place + match.end("rank")
        elif (match := _LOCAL.match(rest)) is not None and local is None:
            local = place + match.start("local"), place + match.end("local")
        elif (match := _NOISE.match(rest)) is None:
            break
        place += match.end()
    if stamp is None:
        return Places(rank, local, None, (), place)
    told, at = stamp
    parts = [(at + told.start(name), at + told.end(name)) for name in "hmsf" if told[name]]
    dated = (at + told.start(), at + told.end()) if told.groupdict().get("D") else None
    return Places(rank, local, dated, tuple(parts), place)


def glued(line: str) -> list[str]:
    """The lines that stand on one, as when several processes write at once."""
    first = line.find("[rank")
    if first < 0 or (first == 0 and line.find("[rank", 5) < 0):
        return [line]
    starts = [match.start() for match in _GLUED.finditer(line)]
    starts = [start for start in starts if start > 0 and not _is_prefix(line[:start])]
    cuts = [0, *starts, len(line)]
    return [line[a:b] for a, b in pairwise(cuts) if line[a:b].strip()]


def _is_prefix(text: str) -> bool:
    """Whether only tags and times stand here."""
    return len(text) < 200 and not tagged(text).body.strip()


def from_path(path: Path) -> tuple[int | None, int | None]:
    """Rank and attempt as the names of a file and its folders tell them."""
    named = "/".join(path.parts[-4:]).lower()
    attempt = _ATTEMPT.search(named)
    short = "/".join(path.parts[-2:]).lower()
    for pattern in _PATHS:
        if match := pattern.search(short):
            return int(match[1]), int(attempt[1]) if attempt else None
    return None, int(attempt[1]) if attempt else None


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    for pattern in patterns:
        match = pattern.match(text)
        if match is not None:
            return match
    return None


def _stamp(match: re.Match[str]) -> Stamp | None:
    told = match.groupdict()
    fraction = told.get("f")
    second = int(told["h"]) * 3600 + int(told["m"]) * 60 + int(told["s"])
    if second >= 86_400 + 1:
        return None
    month = told.get("M") or _MONTH.get(told.get("N") or "")
    zone = told.get("z")
    return Stamp(
        second + (int(fraction) / 10 ** len(fraction) if fraction else 0.0),
        int(told["Y"]) if told.get("Y") else None,
        int(month) if month else None,
        int(told["D"]) if told.get("D") else None,
        _zone(zone) if zone else None,
    )


def _zone(text: str) -> int:
    if text in ("Z", "UTC"):
        return 0
    digits = text[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if text[0] == "-" else seconds
