"""Checkpoints: the time the training stands still to save or load one."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters._patch import Maker, patch
from tracekit.adapters.torch._guard import failed
from tracekit.adapters.torch._loop import Loop, loop_here

__all__ = ["saves", "watch_distributed_save", "watch_save"]

_PACKAGE = "torch.distributed.checkpoint"
_NAMES = {"save": "state_dict_saver", "async_save": "state_dict_saver", "load": "state_dict_loader"}
_inside = threading.local()


def saves(name: str) -> Maker:
    """What records a function that saves or loads; the outermost one, on the training's thread.

    What another thread saves meanwhile keeps nobody waiting.
    """
    type_ = recorder.span_type(name, "checkpoint")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            loop = loop_here()
            if loop is None or loop.waits or getattr(_inside, "checkpoint", False):
                return original(*args, **kwargs)
            _inside.checkpoint = True
            try:
                with type_:
                    return original(*args, **kwargs)
            finally:
                _inside.checkpoint = False

        return call

    return make


_save, _load = saves("torch.save"), saves("torch.load")
_distributed = {name: saves(f"dcp.{name}") for name in _NAMES}


def watch_save() -> list[Callable[[], None]]:
    """Record ``torch.save`` and ``torch.load``; returns what undoes it."""
    return [patch(torch, "save", _save), patch(torch, "load", _load)]


def _patched(module: str, name: str) -> list[Callable[[], None]]:
    try:
        return [patch(sys.modules[module], name, _distributed[name])]
    except Exception as error:
        failed(f"{_PACKAGE}.{name}", error)
        return []


def watch_distributed_save(loop: Loop) -> list[Callable[[], None]]:
    """Record ``torch.distributed.checkpoint`` once somebody has imported it: we never do."""
    return loop.share(_watch_distributed)


def _watch_distributed(loop: Loop) -> list[Callable[[], None]]:
    undo: list[Callable[[], None]] = []

    def look() -> None:
        if _PACKAGE not in sys.modules or not hasattr(sys.modules[_PACKAGE], "save"):
            return
        stop()
        for name, module in _NAMES.items():
            undo.extend(_patched(_PACKAGE, name))
            undo.extend(_patched(f"{_PACKAGE}.{module}", name))

    def end() -> None:
        stop()
        while undo:
            undo.pop()()

    stop = loop.watch_imports(look)
    look()
    return [end]
