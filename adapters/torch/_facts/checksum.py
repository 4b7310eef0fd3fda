"""A checksum of a model's weights: the same on ranks that have the same ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch

__all__ = ["checksum"]

MOST_PARAMETERS = 96
OF_EACH = 64
SMALL = 1 << 16


def checksum(model: torch.nn.Module) -> dict[str, Any]:
    """A checksum of values spread over the parameters; empty where they cannot be read cheaply.

    On an accelerator reading them would wait for it. Of what is sharded each rank has another
    part. Rounding is no matter: the values are taken as they are, none is computed.
    """
    named = list(model.named_parameters())
    if not named or any(not _readable(parameter) for _, parameter in named):
        return {}
    hash_ = blake2b(digest_size=8)
    values = 0
    for name, parameter in _spread(named):
        sample = array("d", _sample(parameter.detach()))
        values += len(sample)
        hash_.update(f"{name.removeprefix('module.')} {tuple(parameter.shape)}".encode())
        hash_.update(sample.tobytes())
    return {"checksum": hash_.hexdigest(), "parameters": len(named), "values": values}


def _readable(parameter: torch.Tensor) -> bool:
    return (
        type(parameter) is torch.nn.Parameter
        and not getattr(parameter, "_is_flat_param", False)
        and parameter.device.type == "cpu"
        and parameter.layout is torch.strided
        and not parameter.is_quantized
    )


def _spread(
    named: list[tuple[str, torch.nn.Parameter]],
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """At most so many of the parameters, at equal distances, the first and the last among them."""
    last = len(named) - 1
    count = min(len(named), MOST_PARAMETERS)
    yield from (named[last * i // max(count - 1, 1)] for i in range(count))


def _sample(values: torch.Tensor) -> list[float]:
    """Values at equal distances, without a copy of a large tensor."""
    if values.is_complex():
        values = torch.view_as_real(values)
    while not values.is_contiguous() and values.numel() > SMALL:
        values = values[len(values) // 2]
    flat = values.reshape(-1)
    step = max(flat.numel() // OF_EACH, 1)
    found: list[float] = flat[::step].tolist()
    return found
