"""The black box of distributed training: record what every rank does, find out why it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.recorder import as_rank, event, fact, span, step
from tracekit.session import start, stop

if TYPE_CHECKING:
    from tracekit.analysis.slow.stragglers import find_stragglers as find_stragglers

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "as_rank",
    "event",
    "fact",
    "find_stragglers",
    "span",
    "start",
    "step",
    "stop",
]


def __getattr__(name: str) -> Any:
    if name == "find_stragglers":
        from tracekit.analysis.slow.stragglers import find_stragglers

        return find_stragglers
    raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
