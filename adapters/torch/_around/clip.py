"""Clipping: how long it takes, and the norm that the gradients had."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop, loop_here
from tracekit.recorder import clock, pause

__all__ = ["watch_clip"]

_CLIP = recorder.span_type("clip_grad_norm", "user")
_FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
_NORM, _APPLY = "_get_total_norm", "_clip_grads_with_norm_"


def watch_clip() -> list[Callable[[], None]]:
    """Record clipping by norm on threads whose training is traced; returns what undoes it."""
    utils = torch.nn.utils
    if hasattr(clip_grad, _NORM) and hasattr(clip_grad, _APPLY):
        # The two halves of clip_grad_norm_: they are found also by who has imported it before us.
        undo = [patch(clip_grad, _NORM, _traced_norm), patch(clip_grad, _APPLY, _traced_apply)]
        if hasattr(utils, "clip_grads_with_norm_"):
            undo.append(patch(utils, "clip_grads_with_norm_", _traced_apply))
    else:
        undo = [patch(place, "clip_grad_norm_", _traced_clip) for place in (clip_grad, utils)]
    sharded = getattr(sys.modules.get(_FSDP), "FullyShardedDataParallel", None)
    if sharded is not None and "clip_grad_norm_" in vars(sharded):
        undo.append(patch(sharded, "clip_grad_norm_", _traced_clip))
    return undo


def _traced_clip(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is None or pause.on or is_compiling():
            return original(*args, **kwargs)
        with _CLIP:
            norm = original(*args, **kwargs)
        _tell(loop, norm)
        return norm

    return clip_grad_norm_


def _traced_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_total_norm(*args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is not None and not is_compiling():
            loop.clip_began = clock()
        return original(*args, **kwargs)

    return _get_total_norm


def _traced_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _clip_grads_with_norm_(*args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is None or pause.on or is_compiling():
            return original(*args, **kwargs)
        began, loop.clip_began = loop.clip_began or clock(), 0
        result = original(*args, **kwargs)
        _clipped(loop, began, args[2] if len(args) > 2 else kwargs.get("total_norm"))
        return result

    return _clip_grads_with_norm_


@guarded("clipping")
def _clipped(loop: Loop, began: int, norm: Any) -> None:
    _CLIP.complete(began, clock())
    _tell(loop, norm)


@guarded("clipping")
def _tell(loop: Loop, norm: Any) -> None:
    # On an accelerator reading it would wait; of a distributed tensor it would be a collective.
    if type(norm) is torch.Tensor and norm.is_cpu and norm.numel() == 1:
        loop.recorder.event("grad_norm", norm.item())
