"""Frameworks on top of PyTorch that know a rank's place: Megatron-core and DeepSpeed.

Neither is imported here: what the job itself has imported is asked, by its public functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tracekit.adapters.torch._loop import Loop
from tracekit.adapters.torch._optimizer import watch_optimizer

__all__ = ["deepspeed_places", "is_deepspeed", "megatron_places", "watch_deepspeed"]

_MEGATRON = ("megatron.core.parallel_state", "megatron.core.mpu", "megatron.mpu")
_NAMES = {
    "dp": ("data_parallel",),
    "tp": ("tensor_model_parallel", "slice_parallel", "model_parallel"),
    "pp": ("pipeline_model_parallel", "pipe_parallel"),
    "cp": ("context_parallel",),
    "sp": ("sequence_parallel",),
    "ep": ("expert_model_parallel", "expert_parallel"),
}
"""In ``get_…_rank()`` and ``get_…_world_size()``; the first that answers counts."""


def megatron_places() -> dict[str, tuple[int, int]]:
    """This rank's place in Megatron's groups, where they are initialised."""
    for name in _MEGATRON:
        state = sys.modules.get(name)
        if state is not None:
            places = _ask(state)
            if places:
                return places
    return {}


def deepspeed_places(model: Any) -> dict[str, tuple[int, int]]:
    """This rank's place as a DeepSpeed engine knows it."""
    if not is_deepspeed(model):
        return {}
    for owner in (getattr(model, "grid", None), getattr(model, "mpu", None)):
        places = _ask(owner) if owner is not None else {}
        if places:
            return places
    size, rank = getattr(model, "dp_world_size", None), getattr(model, "global_rank", None)
    alone = getattr(model, "mp_world_size", 1) == 1 and getattr(model, "num_stages", 1) == 1
    if alone and isinstance(size, int) and isinstance(rank, int):
        return {"dp": (rank % size, size)}
    return {}


def is_deepspeed(model: Any) -> bool:
    """Whether a model is a DeepSpeed engine."""
    return "deepspeed" in sys.modules and any(
        base.__name__ == "DeepSpeedEngine" for base in type(model).__mro__
    )


def watch_deepspeed(engine: Any, loop: Loop) -> list[Callable[[], None]]:
    """Record the updates of a DeepSpeed engine, which end its steps.

    The engine calls its optimizer once it has accumulated enough, unlike its own ``step()``.
    """
    optimizer = getattr(engine, "optimizer", None)
    if not is_deepspeed(engine) or not callable(getattr(optimizer, "step", None)):
        return []
    return watch_optimizer(optimizer, loop)


def _ask(owner: Any) -> dict[str, tuple[int, int]]:
    """The place by functions for rank and size; what is not initialised is left out."""
    places = {}
    for dimension, names in _NAMES.items():
        for name in names:
            rank = getattr(owner, f"get_{name}_rank", None)
            size = getattr(owner, f"get_{name}_world_size", None)
            if rank is None or size is None:
                continue
            try:
                places[dimension] = (int(rank()), int(size()))
            except Exception:
                continue  # these groups do not exist in this job
            break
    return places
