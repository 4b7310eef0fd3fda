"""What RAS prints and what it means: ``lines.json``; a new release is a new row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["table"]


@lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """All of it."""
    text = files(__package__).joinpath("lines.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
