"""How many bytes of a tensor lie on this rank."""

from __future__ import annotations

import torch

__all__ = ["local_bytes"]


def local_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor, of a distributed one those of its part here."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.numel() * local.element_size()
