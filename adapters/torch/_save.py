"""Checkpoints: the time a thread spends in ``torch.save``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters.torch._patch import patch

__all__ = ["watch_save"]

_SAVE = recorder.span_type("torch.save", "checkpoint")
_inside = threading.local()


def watch_save() -> list[Callable[[], None]]:
    """Record ``torch.save``; returns what undoes it."""
    return [patch(torch, "save", _traced)]


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "save", False):
            return original(*args, **kwargs)
        _inside.save = True
        try:
            with _SAVE:
                return original(*args, **kwargs)
        finally:
            _inside.save = False

    return save
