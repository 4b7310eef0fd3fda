"""What single fields of a dump say, in any of its forms."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["LONGEST", "MOST", "Group", "frame_of", "groups_of", "number_of", "status_of", "text_of"]

LONGEST = 200
"""Characters of a text that are kept."""
MOST = 1 << 62
_NUMBERS = re.compile(r"\d+")
_LIBRARIES = re.compile(
    r"/(site|dist)-packages/|/lib/python3[^/]*/|^<|/torch/|\.(cpp|h|hpp|cc|cu)$|^\?\?"
)

Group = tuple[str, str, tuple[int, ...]]
"""Name, description and members (global ranks, in the order of the group; empty: not told)."""


def frame_of(frames: Any) -> str | None:
    """The innermost frame of the user's code, else of any."""
    listed = [one for one in (frames if isinstance(frames, list) else ()) if isinstance(one, dict)]
    chosen = next(
        (one for one in listed if not _LIBRARIES.search(str(one.get("filename", "")))), None
    )
    if chosen is None:
        chosen = listed[0] if listed else None
    if chosen is None:
        return None
    place = f"{chosen.get('filename')}:{chosen.get('line')} {chosen.get('name')}"
    return " ".join(place.split())[-LONGEST:]


def groups_of(told: Any) -> dict[str, Group]:
    """The groups of which the rank is a member, by name."""
    found: dict[str, Group] = {}
    for key, value in told.items() if isinstance(told, dict) else ():
        described = value if isinstance(value, dict) else {"ranks": value}
        name = text_of(described.get("name")) or text_of(key)
        ranks = described.get("ranks")
        if name:
            found[name] = (name, text_of(described.get("desc")), _members(ranks))
    return found


_parsed: dict[str, tuple[int, ...]] = {}


def _members(told: Any) -> tuple[int, ...]:
    """Members from a list, or from the text of one; empty where there are none."""
    if isinstance(told, str):
        known = _parsed.get(told)
        if known is None:
            if len(_parsed) > 1 << 16:
                _parsed.clear()
            ranks = [int(digits[:9]) for digits in _NUMBERS.findall(told)]
            known = _parsed[told] = tuple(dict.fromkeys(ranks))
        return known
    if isinstance(told, (list, tuple)):
        return tuple(dict.fromkeys(one for one in told if type(one) is int and 0 <= one < 1 << 30))
    return ()


def status_of(told: Any) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for key, value in told.items() if isinstance(told, dict) else ():
        if isinstance(value, dict):
            numbers = [number_of(value.get(f"last_{what}_collective")) for what in _STAGES]
            enqueued, started, completed = (-1 if one is None else one for one in numbers)
            found[text_of(str(key))] = enqueued, started, completed
    return found


_STAGES = ("enqueued", "started", "completed")


def number_of(value: Any) -> int | None:
    """A whole number, also from text."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if type(value) is int and -MOST < value < MOST else None


def text_of(value: Any) -> str:
    return " ".join(value.split())[:LONGEST] if isinstance(value, str) else ""
