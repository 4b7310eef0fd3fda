"""Whether ``torch.compile`` looks at a function of ours: then it is to see only the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["is_compiling", "is_opaque"]


def _never() -> bool:
    return False


def _of_torch() -> Callable[[], bool]:
    """PyTorch's own answer where it has one; the compiler knows it and leaves ours out.

    Its function asks the script compiler too, which with cold caches takes most of the time.
    """
    compiler: Any = getattr(torch, "compiler", None)
    by_dynamo = getattr(compiler, "is_dynamo_compiling", None)
    if by_dynamo is None or not hasattr(compiler, "_is_compiling_flag"):
        known: Callable[[], bool] = getattr(compiler, "is_compiling", _never)
        return known

    def is_compiling() -> bool:
        compiling: bool = by_dynamo() or compiler._is_compiling_flag
        return compiling

    return is_compiling


is_compiling: Callable[[], bool] = _of_torch()


def is_opaque(model: torch.nn.Module) -> bool:
    """Whether a model is compiled by a version whose compiler stumbles over functions of ours.

    What is in such a model is not to be patched.
    """
    return is_compiling is _never and hasattr(model, "_orig_mod")
