"""The forward of traced models, and the buffers that DDP broadcasts in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import is_grad_enabled
from torch.nn.parallel import DistributedDataParallel

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.torch._comm.arrivals import Arrivals
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._ddp import Replica, ddp_around
from tracekit.adapters.torch._device import DevicePhase
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.adapters.torch._loop import BACKWARD, EVAL, FORWARD, Loop
from tracekit.recorder import SpanType

__all__ = ["Reduced", "TracedModel", "watch_broadcasts", "watch_forward", "watch_join"]


class Adopter(Protocol):
    """Who wants to know that a model was wrapped in DDP after it was traced."""

    def adopt(self, ddp: DistributedDataParallel) -> None:
        """Trace this DDP object too."""
        ...


class Reduced:
    """A DDP object, and what records its all-reduces as arrivals, if anything does."""

    def __init__(self, replica: Replica, arrivals: Arrivals | None) -> None:
        self.replica = replica
        self.arrivals = arrivals

    def are_expected(self) -> bool:
        """A forward begins; returns whether its backward reduces gradients."""
        if self.arrivals is not None:
            return self.arrivals.are_expected()
        return self.replica.reduces_next() is not None


class TracedModel:
    """What the forward of one model has to know: its loop, and the DDP objects in it."""

    def __init__(
        self, loop: Loop, reduced: Sequence[Reduced] = (), adopter: Adopter | None = None
    ) -> None:
        self.loop = loop
        self._reduced = reduced
        self._adopter = adopter

    def forward(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kw: Any) -> Any:
        """Call the model's forward as a span; the outermost one on its thread is recorded.

        One inside a backward computes activations anew that were not kept: part of the backward.
        """
        loop = self.loop
        if loop.open & BACKWARD.bit:
            return call(model, *args, **kw)
        trains = is_grad_enabled()
        try:
            if not loop.used or self._adopter is not None:
                self._meets(model)
            if trains:
                if not loop.open & FORWARD.bit:
                    loop.forward_begins()
                for reduced in self._reduced:
                    if not reduced.are_expected():
                        loop.accumulates()
        except Exception as error:
            failed("forward", error)
        phase = FORWARD if trains or loop.open & FORWARD.bit else EVAL
        return loop.run(phase, call, (model, *args), kw)

    def _meets(self, model: torch.nn.Module) -> None:
        """Since it was traced it may have gone to another thread, or been wrapped in DDP."""
        if not self.loop.used:
            self.loop.move_here()
        if self._adopter is not None:
            ddp = ddp_around(model)
            if ddp is not None:
                adopter, self._adopter = self._adopter, None
                adopter.adopt(ddp)


_models: Watch[TracedModel] = Watch()


def watch_forward(
    model: object, traced: TracedModel, name: str = "__call__"
) -> list[Callable[[], None]]:
    """Record the calls of a model, or of a method that runs one; returns what undoes it."""
    return [_models.add(model, traced), patch(type(model), name, _traced_call)]


def _traced_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        traced = _models.values.get(id(self))
        if traced is None or is_compiling():
            return original(self, *args, **kwargs)
        return traced.forward(self, original, args, kwargs)

    return __call__


# Buffers: rank 0 sends, the others wait for it


class Broadcasts:
    """One span for each broadcast of a DDP object's buffers."""

    def __init__(self, loop: Loop, replica: Replica) -> None:
        self._loop = loop
        self._group = replica.group
        self._types: dict[int, tuple[SpanType, DevicePhase]] = {}
        self._bytes: tuple[int, int] = (0, 0)

    def run(self, call: Callable[..., Any], tensors: Any, root: int) -> Any:
        """Broadcast as a span of the thread that does it."""
        begun = self._begin(tensors, root)
        try:
            result = call()
        except BaseException:
            self._end(begun, True)
            raise
        self._end(begun, False)
        return result

    @guarded("broadcast")
    def _begin(self, tensors: Any, root: int) -> Any:
        if root not in self._types:
            collective = self._group.collective("broadcast", root=root)
            self._types[root] = (
                recorder.span_type("broadcast", "comm", collective),
                DevicePhase("broadcast", "comm", collective),
            )
        if self._bytes[0] != len(tensors):
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self._bytes = (len(tensors), size)
        if recorder.pause.on:
            return None
        type_, phase = self._types[root]
        seq, nbytes = self._group.next(), self._bytes[1]
        device = self._loop.device
        if device is not None:
            return phase, device.mark(), seq, nbytes
        return type_, type_.begin(seq, nbytes)

    @guarded("broadcast")
    def _end(self, begun: Any, error: bool) -> None:
        device = self._loop.device
        if begun is None:
            return
        if device is not None and len(begun) == 4:
            phase, start, seq, nbytes = begun
            device.span(phase, start, device.mark(), seq, nbytes)
        else:
            type_, token = begun
            type_.end(token, error=error)


_broadcasts: Watch[Broadcasts] = Watch()


def watch_broadcasts(loop: Loop, replica: Replica) -> list[Callable[[], None]]:
    """Record the broadcasts of a DDP object's buffers; returns what undoes it."""
    name = "_distributed_broadcast_coalesced"
    if replica.ddp is None or not hasattr(DistributedDataParallel, name):
        recorder.say_once(
            "PyTorch adapter: this version of PyTorch broadcasts buffers in another way;"
            " these broadcasts are not recorded"
        )
        return []
    return [
        _broadcasts.add(replica.ddp, Broadcasts(loop, replica)),
        patch(DistributedDataParallel, name, _traced_broadcast),
    ]


def _traced_broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _distributed_broadcast_coalesced(
        self: Any, tensors: Any, buffer_size: Any, authoritative_rank: int = 0
    ) -> Any:
        broadcasts = _broadcasts.get(self)
        call = functools.partial(original, self, tensors, buffer_size, authoritative_rank)
        if broadcasts is None or is_compiling():
            return call()
        return broadcasts.run(call, tensors, authoritative_rank)

    return _distributed_broadcast_coalesced


# Join: a rank without inputs still takes part in the others' all-reduce


def watch_join(reduced: Reduced) -> list[Callable[[], None]]:
    """Record the all-reduces that a rank without inputs only answers; returns what undoes it."""
    name = "_match_all_reduce_for_bwd_pass"
    ddp = reduced.replica.ddp
    if ddp is None or reduced.arrivals is None or not hasattr(DistributedDataParallel, name):
        return []
    return [
        _answering.add(ddp, reduced.arrivals),
        patch(DistributedDataParallel, name, _traced_answer),
    ]


_answering: Watch[Arrivals] = Watch()


def _traced_answer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _match_all_reduce_for_bwd_pass(self: Any) -> Any:
        arrivals = _answering.get(self)
        if arrivals is None:
            return original(self)
        token = arrivals.answer_begins()
        try:
            return original(self)
        finally:
            arrivals.answer_ends(token)

    return _match_all_reduce_for_bwd_pass
