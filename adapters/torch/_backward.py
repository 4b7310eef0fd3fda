"""The backward: the outermost ``Tensor.backward`` or ``torch.autograd.backward`` of a thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tracekit.adapters._patch import patch
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._loop import loop_here

__all__ = ["watch_backward"]


def watch_backward() -> list[Callable[[], None]]:
    """Record backwards of threads whose training is traced; returns what undoes it."""
    return [
        patch(torch.autograd, "backward", _traced),
        patch(torch.Tensor, "backward", _traced),
    ]


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is None or is_compiling():
            return original(*args, **kwargs)
        return loop.backward(original, args, kwargs)

    return backward
