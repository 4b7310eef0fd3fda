"""Keeps our own mistakes out of a TensorFlow training, and finds TensorFlow."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from tracekit.adapters._guard import Guard
from tracekit.errors import MissingDependency

__all__ = ["failed", "failures", "guarded", "loaded", "require"]

_guard = Guard("TensorFlow")
failed = _guard.failed
failures = _guard.failures
guarded = _guard.guarded


def require() -> None:
    """Raise ``MissingDependency`` where there is no TensorFlow."""
    if "tensorflow" not in sys.modules and find_spec("tensorflow") is None:
        raise MissingDependency("tensorflow", "tensorflow")


def loaded() -> Any:
    """TensorFlow, if the program has imported it."""
    return sys.modules.get("tensorflow")
