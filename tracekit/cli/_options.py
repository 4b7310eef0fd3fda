"""Options that several sub-commands share."""

from __future__ import annotations

from enum import Enum

__all__ = ["Format"]


class Format(str, Enum):
    """How a result is printed."""

    text = "text"
    json = "json"
