"""Whether ``torch.compile`` looks at a function of ours: then it is to see only the original."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["is_compiling", "is_opaque"]


def _never() -> bool:
    return False


def _of_torch() -> Callable[[], bool]:
    """PyTorch's own answer where it has one; the compiler knows it and leaves ours out.

    What traces by running the model may see us. To ask for that too takes three times as long.
    """
    compiler = getattr(torch, "compiler", None)
    known: Callable[[], bool] = getattr(compiler, "is_compiling", _never)
    by_dynamo: Callable[[], bool] = getattr(compiler, "is_dynamo_compiling", known)
    return by_dynamo


is_compiling: Callable[[], bool] = _of_torch()


def is_opaque(model: torch.nn.Module) -> bool:
    """Whether a model is compiled by a version whose compiler stumbles over functions of ours.

    What is in such a model is not to be patched.
    """
    return is_compiling is _never and hasattr(model, "_orig_mod")
