"""The backward: the outermost ``torch.autograd.backward``, which ``Tensor.backward`` calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from tracekit.adapters._patch import patch
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._loop import loops

__all__ = ["watch_backward"]


def watch_backward() -> list[Callable[[], None]]:
    """Record backwards of threads whose training is traced; returns what undoes it."""
    undo = [patch(torch.autograd, "backward", _traced)]
    if not _tensors_call_it():
        undo.append(patch(torch.Tensor, "backward", _traced))
    return undo


def _tensors_call_it() -> bool:
    """Whether ``Tensor.backward`` looks that function up by its name."""
    code = getattr(torch.Tensor.backward, "__code__", None)
    return code is not None and {"autograd", "backward"} <= {*code.co_names}


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        # Asked first: the compiler warns of get_ident.
        loop = None if is_compiling() else loops.get(get_ident())
        if loop is None:
            return original(*args, **kwargs)
        return loop.backward(original, args, kwargs)

    return backward
