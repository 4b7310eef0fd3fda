"""The loss: what the outermost backward of a micro-step is called on, where it is a number here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters.torch._loop import Loop
from tracekit.recorder import Here

__all__ = ["watch_loss"]


_LOSS = recorder.EventType("loss")


def watch_loss(loop: Loop) -> list[Callable[[], None]]:
    """Record the event ``loss`` at each backward of a single number on the CPU."""
    return loop.share(_watch)


def _watch(loop: Loop) -> list[Callable[[], None]]:
    def tell(args: tuple[Any, ...], kwargs: Mapping[str, Any], here: Here) -> None:
        scaled = loop.scaled
        if scaled is not None:
            loop.scaled = None
        loss = args[0] if args else kwargs.get("tensors")
        if type(loss) is not torch.Tensor:
            if not isinstance(loss, (list, tuple)) or len(loss) != 1:
                return
            loss = loss[0]
            if type(loss) is not torch.Tensor:
                return
        # On an accelerator reading it would wait for all that was launched before.
        if not loss.is_cpu:
            return
        if len(args) > 1 and args[1] is not None:
            return  # a gradient is given: the end of a part of the model, no loss
        if kwargs and not (kwargs.get("gradient") is kwargs.get("grad_tensors") is None):
            return
        try:
            value = loss.item()
        except RuntimeError:
            return  # no single number: the backward says what is wrong with it
        if type(value) is not float:
            return
        if scaled is not None:
            result, scale = scaled
            if result() is not loss:
                return  # made of a scaled loss, who knows how
            value /= scale
        _LOSS.record(value, here.found or here.find())

    loop.told_loss = tell

    def stop() -> None:
        loop.told_loss = None

    return [stop]
