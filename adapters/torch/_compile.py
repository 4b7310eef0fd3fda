"""Whether ``torch.compile`` looks at a function of ours: then it is to see only the original."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["is_compiling"]


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", _never)
"""PyTorch's own function where there is one; the compiler knows it and leaves ours out."""
