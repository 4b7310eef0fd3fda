"""How a verdict is told: to a person in a terminal, to a program as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.report._json import json, json_object

if TYPE_CHECKING:
    from tracekit.report._text import text as text

__all__ = ["json", "json_object", "text"]


def __getattr__(name: str) -> Any:
    if name == "text":  # whoever wants JSON does not wait for a terminal's library
        from tracekit.report._text import text

        return text
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
