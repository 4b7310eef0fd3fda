"""Who waits for whom, for how long, since when, because of what: tables in, a verdict out.

Nothing is imported before it is used, so that ``find_stragglers`` needs the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.analysis.options import Options as Options
    from tracekit.analysis.pipeline import analyze as analyze
    from tracekit.analysis.slow.stragglers import find_stragglers as find_stragglers
    from tracekit.findings.result import Analysis as Analysis

__all__ = ["Analysis", "Options", "analyze", "find_stragglers"]

_HOMES = {
    "Analysis": "tracekit.findings.result",
    "Options": "tracekit.analysis.options",
    "analyze": "tracekit.analysis.pipeline",
    "find_stragglers": "tracekit.analysis.slow.stragglers",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
