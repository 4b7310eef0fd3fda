"""Keeps our own mistakes out of a PyTorch training."""

from __future__ import annotations

from tracekit.adapters._guard import Guard

__all__ = ["failed", "failures", "guarded"]

_guard = Guard("PyTorch")
failed = _guard.failed
failures = _guard.failures
guarded = _guard.guarded
