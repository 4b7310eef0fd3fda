"""The span of OpenTelemetry that a run began in, so that its trace can point to it."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["otel_parent"]


def otel_parent(around: dict[str, str] | None) -> dict[str, str] | None:
    """The ids of the span that is active in this thread, else of the one ``around`` the process.

    OpenTelemetry is asked only where the program has imported it itself.
    """
    api: Any = sys.modules.get("opentelemetry.trace")
    try:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    except Exception:  # not imported, half imported, or a span of somebody else's making
        return around
    return around
