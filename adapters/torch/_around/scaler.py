"""Gradient scaling: the scale when it changes, and the updates that are skipped."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import OPTIMIZER, Loop, loop_here
from tracekit.adapters.torch._optimizer import Updates, updates_of
from tracekit.recorder import pause

__all__ = ["watch_scaler"]

_SHARDED = "torch.distributed.fsdp.sharded_grad_scaler"


def watch_scaler() -> list[Callable[[], None]]:
    """Record what GradScalers do on threads whose training is traced; returns what undoes it."""
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    sharded = getattr(sys.modules.get(_SHARDED), "ShardedGradScaler", None)
    undo = [patch(scaler, "step", _traced_step), patch(scaler, "scale", _traced_scale)]
    if sharded is not None and "scale" in vars(sharded):
        undo.append(patch(sharded, "scale", _traced_scale))
    return undo


def _traced_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        if not (pause.on or is_compiling()):
            _scaled(self, result)
        return result

    return scale


@guarded("loss")
def _scaled(scaler: Any, result: Any) -> None:
    """Remember by what this loss was multiplied."""
    loop = loop_here()
    if loop is not None and type(result) is torch.Tensor and result.is_cpu:
        scale = _scale_of(scaler)
        if scale:
            loop.scaled = (weakref.ref(result), scale)


def _scale_of(scaler: Any) -> float | None:
    """The scale, where it is a number on the host; else asking would wait for the device."""
    if not scaler.is_enabled():
        return None
    scale = scaler._scale
    return float(scale) if scale is not None and scale.is_cpu else None


def _traced_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        updates = updates_of(optimizer)
        if loop is None or updates is None or is_compiling():
            return original(self, optimizer, *args, **kwargs)
        before = _begins(self, optimizer, updates, loop)
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            updates.watched = None
        _ended(updates, before, loop)
        return result

    return step


@guarded("gradient scaling")
def _begins(scaler: Any, optimizer: Any, updates: Updates, loop: Loop) -> int:
    if pause.on:
        return updates.made
    scale = _scale_of(scaler)
    if scale is not None and scale != updates.scale:
        updates.scale = scale
        loop.recorder.event("grad_scale", scale)

    @guarded("gradient scaling")
    def check() -> None:
        # An optimizer that unscales by itself skips by itself: its step was called all the same.
        found = getattr(optimizer, "found_inf", None)
        if found is not None and found.is_cpu and found.item():
            loop.recorder.event("optimizer_skipped")

    updates.watched = check
    return updates.made


@guarded("gradient scaling")
def _ended(updates: Updates, before: int | None, loop: Loop) -> None:
    """Without a call of ``optimizer.step`` the update was skipped; the training step is over."""
    if before == updates.made and not loop.open & OPTIMIZER.bit:
        if not pause.on:
            recorder.event("optimizer_skipped")
        updates.skipped()
