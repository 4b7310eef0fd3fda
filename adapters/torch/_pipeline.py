"""The stages of ``torch.distributed.pipelining``: each micro-batch a forward and a backward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import EVAL, FORWARD, Loop, loop_here
from tracekit.adapters.torch._patch import Watch, patch
from tracekit.adapters.torch._roles import note_places

__all__ = ["watch_pipeline"]

_MODULE = "torch.distributed.pipelining.stage"


def watch_pipeline() -> list[Callable[[], None]]:
    """Record what a pipeline's schedule lets this rank do, if the job has imported any."""
    module = sys.modules.get(_MODULE)
    stage = getattr(module, "_PipelineStageBase", None)
    if stage is None:
        return []
    makers = {
        "forward_one_chunk": _traced_forward,
        "backward_one_chunk": _traced_backward,
        "backward_weight_one_chunk": _traced_backward,
    }
    return [patch(stage, name, make) for name, make in makers.items() if hasattr(stage, name)]


_known: Watch[bool] = Watch()


@guarded("pipeline")
def _begins(loop: Loop, stage: Any, chunk: Any) -> None:
    loop.move_here()
    if isinstance(chunk, int):
        loop.takes_up(chunk)
    if _known.get(stage) is None:
        _known.add(stage, True)
        note_places("groups", {"pp": (int(stage.group_rank), int(stage.group_size))})


def _traced_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward_one_chunk(self: Any, chunk: Any, /, *args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is None:
            return original(self, chunk, *args, **kwargs)
        _begins(loop, self, chunk)
        phase = FORWARD if torch.is_grad_enabled() else EVAL
        return loop.run(phase, original, (self, chunk, *args), kwargs)

    return forward_one_chunk


def _traced_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward_one_chunk(self: Any, chunk: Any, /, *args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is None:
            return original(self, chunk, *args, **kwargs)
        _begins(loop, self, chunk)

        def call(*_: Any) -> Any:
            return original(self, chunk, *args, **kwargs)

        return loop.backward(call, (kwargs.get("loss"),), {})

    return backward_one_chunk
