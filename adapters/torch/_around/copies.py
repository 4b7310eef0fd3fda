"""Copies from the host to the accelerator: ``Tensor.to`` and ``Tensor.cuda`` and their kin."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracekit.adapters._patch import patch
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._device import DeviceClock
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop, Phase, loop_here
from tracekit.recorder import clock, pause

__all__ = ["watch_copies"]

_COPY = Phase("to_device", "transfer")
_NEVER_DEVICES = (torch.dtype, bool)


def watch_copies(loop: Loop) -> list[Callable[[], None]]:
    """Record copies from the host, where there is somewhere to copy to; returns what undoes it."""
    if loop.device is None:
        return []
    undo = [patch(torch.Tensor, "to", _traced)]
    kind = loop.device.name.partition(":")[0]
    if hasattr(torch.Tensor, kind):
        undo.append(patch(torch.Tensor, kind, _traced))
    return undo


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    # Models call this in every layer: straight to the method in C, where nobody came before us.
    inherited = original.__name__ not in vars(torch.Tensor)
    direct = getattr(original, "__wrapped__", original) if inherited else original

    @functools.wraps(original)
    def to(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not self.is_cpu or pause.on or is_compiling():
            return direct(self, *args, **kwargs)
        loop = loop_here()
        if loop is None or loop.device is None or not _leaves(args, kwargs):
            return direct(self, *args, **kwargs)
        device, start = loop.device, clock()
        mark = device.mark()
        result = direct(self, *args, **kwargs)
        _copied(device, self, result, start, mark)
        return result

    return to


def _leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments can name another device; a dtype alone cannot."""
    where = kwargs.get("device", args[0] if args else None)
    if isinstance(where, torch.Tensor):
        return not where.is_cpu
    return not (isinstance(where, _NEVER_DEVICES) or str(where).startswith("cpu"))


@guarded("copies")
def _copied(device: DeviceClock, source: Any, result: Any, start: int, mark: Any) -> None:
    """The copy was made, or launched where the host's memory is pinned."""
    end = device.mark()
    if result.device.type == "cpu":
        device.forget(mark, end)
        return
    attributes = {"bytes": source.numel() * source.element_size()}
    _COPY.launch.complete(start, clock(), attributes=attributes)
    device.span(_COPY.device, mark, end, attributes=attributes)
