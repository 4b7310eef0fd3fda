"""Whether ``torch.compile`` looks at a function of ours: then it is to see only the original."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["is_compiling", "is_opaque"]


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", _never)
"""PyTorch's own function where there is one; the compiler knows it and leaves ours out."""


def is_opaque(model: torch.nn.Module) -> bool:
    """Whether a model is compiled by a version whose compiler stumbles over functions of ours.

    What is in such a model is not to be patched.
    """
    return is_compiling is _never and hasattr(model, "_orig_mod")
