"""The stages of ``torch.distributed.pipelining``: each micro-batch a forward and a backward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.torch._facts.roles import note_places
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import EVAL, FORWARD, Loop, loop_here

__all__ = ["watch_pipeline"]

_STAGES = "torch.distributed.pipelining.stage"
_SCHEDULES = "torch.distributed.pipelining.schedules"


def watch_pipeline() -> list[Callable[[], None]]:
    """Record what a pipeline's schedule lets this rank do, if the job has imported any."""
    stage = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
    schedules = sys.modules.get(_SCHEDULES)
    places = [
        (stage, "forward_one_chunk", _traced_forward),
        (stage, "backward_one_chunk", _traced_backward),
        (stage, "backward_weight_one_chunk", _traced_backward),
        (getattr(schedules, "PipelineScheduleSingle", None), "step", _traced_step),
        (getattr(schedules, "PipelineScheduleMulti", None), "step", _traced_step),
    ]
    return [patch(owner, name, make) for owner, name, make in places if hasattr(owner, name)]


_known: Watch[bool] = Watch()


def _traced_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        loop = loop_here()
        if loop is not None and torch.is_grad_enabled():
            loop.takes_up(0)  # what it receives for its first forward is of this step already
        return original(self, *args, **kwargs)

    return step


@guarded("pipeline")
def _begins(loop: Loop, stage: Any, chunk: Any) -> None:
    loop.move_here()
    if isinstance(chunk, int) and torch.is_grad_enabled():
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
