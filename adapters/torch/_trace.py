"""``trace()``: what is attached to a training loop, and its ``detach()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tracekit import recorder
from tracekit.adapters._patch import Watch
from tracekit.adapters.torch._around.clip import watch_clip
from tracekit.adapters.torch._around.copies import watch_copies
from tracekit.adapters.torch._around.gc import watch_gc
from tracekit.adapters.torch._around.loader import watch_loader
from tracekit.adapters.torch._around.loss import watch_loss
from tracekit.adapters.torch._around.memory import watch_memory
from tracekit.adapters.torch._around.save import watch_distributed_save, watch_save
from tracekit.adapters.torch._around.scaler import watch_scaler
from tracekit.adapters.torch._backward import watch_backward
from tracekit.adapters.torch._comm.arrivals import Arrivals
from tracekit.adapters.torch._comm.collectives import watch_collectives
from tracekit.adapters.torch._comm.compositions import watch_compositions
from tracekit.adapters.torch._comm.functional import watch_functional
from tracekit.adapters.torch._comm.hook import dispatch
from tracekit.adapters.torch._compile import is_opaque
from tracekit.adapters.torch._ddp import Replica, replicas_in
from tracekit.adapters.torch._device import DeviceClock, accelerator_of
from tracekit.adapters.torch._facts.frameworks import watch_deepspeed
from tracekit.adapters.torch._facts.identity import bind_identity, watch_alone
from tracekit.adapters.torch._facts.roles import watch_roles
from tracekit.adapters.torch._facts.run import tell_facts, watch_ddp_facts
from tracekit.adapters.torch._forward import (
    Reduced,
    TracedModel,
    watch_broadcasts,
    watch_forward,
    watch_join,
)
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.adapters.torch._loop import Loop
from tracekit.adapters.torch._optimizer import watch_optimizer
from tracekit.adapters.torch._pipeline import watch_pipeline
from tracekit.errors import UsageError
from tracekit.recorder import Recorder

__all__ = ["Handle", "attach", "trace", "when_asked"]

_handles: Watch[Handle] = Watch()


def trace(
    model: torch.nn.Module,
    optimizer: Any = None,
    loader: Iterable[Any] | None = None,
    buckets: bool = False,
) -> Handle:
    """Record the training of a model: data wait, forward, backward, all-reduce, optimizer, steps.

    Call it once, after the model is wrapped in DDP, with the objects that the loop uses. Steps
    are marked only with an ``optimizer`` (or by ``tracekit.step``). ``buckets`` records the
    all-reduce of each gradient bucket through a communication hook, which costs 1 to 4 % of a
    step. A model that is traced already gives its handle again, with what was missing added.
    Raises ``UsageError`` for arguments that cannot be meant; whatever is found out later is said
    through ``logging`` and never disturbs the training.
    """
    _check(model, optimizer, loader)
    while _instead:
        _instead.pop()()
    return attach(model, optimizer, loader, buckets)


_instead: list[Callable[[], None]] = []


def when_asked(stop: Callable[[], None]) -> None:
    """Call ``stop`` once ``trace()`` is called: what somebody traces, nothing traces by itself."""
    _instead.append(stop)


def attach(
    model: torch.nn.Module,
    optimizer: Any = None,
    loader: Iterable[Any] | None = None,
    buckets: bool = False,
) -> Handle:
    """Trace a model, whoever wants it traced."""
    handle = _handles.get(model)
    if handle is not None and not handle.live:
        handle.detach()
        handle = None
    if handle is None:
        handle = Handle(_recorder())
        handle.attach_model(model, buckets)
    handle.attach_loop(optimizer, loader)
    return handle


def _check(model: Any, optimizer: Any, loader: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"trace() needs the torch.nn.Module that your loop calls, not {_named(model)}"
        )
    if optimizer is not None and not callable(getattr(optimizer, "step", None)):
        raise UsageError(
            f"optimizer= needs an object with a step() method, not {_named(optimizer)}"
        )
    if loader is not None and not (
        hasattr(type(loader), "__iter__") or hasattr(type(loader), "__getitem__")
    ):
        raise UsageError(f"loader= needs what your loop iterates over, not {_named(loader)}")


def _named(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"the class {kind.__name__}" if isinstance(value, type) else f"a {kind.__name__}"


@guarded("start")
def _recorder() -> Recorder | None:
    if recorder.current_or_start() is not None:
        bind_identity()
    return recorder.current()


class Handle:
    """What ``trace()`` attached; ``detach()`` puts everything back."""

    def __init__(self, rec: Recorder | None) -> None:
        self._loop = Loop.join(rec) if rec is not None else None
        self._undo: list[Callable[[], None]] = []
        self._buckets = False
        if self._loop is not None:
            self._undo.append(self._loop.leave)

    @property
    def live(self) -> bool:
        """Whether something is still recorded through it."""
        return self._loop is not None and not self._loop.recorder.closed

    @property
    def loop(self) -> Loop | None:
        """The loop of the training; None where nothing is recorded."""
        return self._loop

    def attach_model(self, model: torch.nn.Module, buckets: bool) -> None:
        """Trace a model and the DDP objects in it."""
        loop = self._loop
        if loop is None:
            return
        self._buckets = buckets
        self._undo.append(_handles.add(model, self))
        if loop.device is None:
            accelerator = accelerator_of(model)
            if accelerator is not None:
                loop.device = DeviceClock(accelerator, loop.recorder)
        opaque = is_opaque(model)
        found = [self._attach_ddp(ddp, opaque) for ddp in replicas_in(model)]
        reduced = [one for one in found if one is not None]
        if opaque:
            recorder.say_once(
                "PyTorch adapter: the compiler of this version of PyTorch cannot see past hooks of"
                " ours; forward and all_reduce of a compiled model are not recorded"
            )
        elif not isinstance(model, DistributedDataParallel):
            adopter = None if found else self
            self._keep(watch_forward, model, TracedModel(loop, reduced, adopter))
        self._keep(watch_backward)
        self._keep(watch_collectives)
        self._keep(watch_compositions)
        self._keep(watch_functional)
        self._keep(watch_pipeline)
        self._keep(watch_roles, model, loop)
        self._keep(watch_deepspeed, model, loop)
        self._keep(watch_alone, loop)
        self._keep(watch_gc)
        self._keep(watch_save)
        self._keep(watch_distributed_save, loop)
        self._keep(watch_scaler)
        self._keep(watch_clip)
        self._keep(watch_loss, loop)
        self._keep(watch_memory, loop)
        self._keep(watch_copies, loop)
        self._keep(tell_facts, model, loop)
        for one in reduced:
            self._keep(watch_ddp_facts, one.replica, model, loop)

    def attach_loop(self, optimizer: Any, loader: Any) -> None:
        """Trace an optimizer and a loader; what is traced already stays as it is."""
        if self._loop is not None:
            if optimizer is not None:
                self._keep(watch_optimizer, optimizer, self._loop)
            if loader is not None:
                self._keep(watch_loader, loader, self._loop)

    def adopt(self, ddp: DistributedDataParallel) -> None:
        """The traced model was wrapped in DDP later: trace its gradients from the next step on."""
        bind_identity()
        reduced = self._attach_ddp(ddp)
        if reduced is not None and self._loop is not None:
            self._keep(watch_ddp_facts, reduced.replica, ddp, self._loop)

    def _attach_ddp(self, ddp: DistributedDataParallel, opaque: bool = False) -> Reduced | None:
        loop = self._loop
        assert loop is not None
        try:
            replica = Replica(ddp)
        except Exception as error:
            failed("DDP", error)
            self._keep(watch_forward, ddp, TracedModel(loop))
            return None
        arrivals = None if self._attach_buckets(replica) else self._attach_arrivals(replica)
        reduced = Reduced(replica, arrivals)
        if not opaque:
            self._keep(watch_forward, ddp, TracedModel(loop, [reduced]))
            self._keep(watch_broadcasts, loop, replica)
        self._keep(watch_join, reduced)
        return reduced

    @guarded("bucket spans")
    def _attach_buckets(self, replica: Replica) -> bool:
        assert self._loop is not None
        undo = dispatch(replica, self._loop.device) if self._buckets else []
        self._undo += undo
        return bool(undo)

    @guarded("all_reduce arrivals")
    def _attach_arrivals(self, replica: Replica) -> Arrivals | None:
        if not replica.reduces():
            recorder.say_once(
                "PyTorch adapter: this DDP object reduces its gradients outside the backward;"
                " its all-reduces are not recorded"
            )
            return None
        loop = self._loop
        assert loop is not None
        arrivals = Arrivals(replica, loop.device)
        loop.synchronised.append(arrivals)
        self._undo += [arrivals.remove, lambda: loop.synchronised.remove(arrivals)]
        return arrivals

    def _keep(self, watch: Callable[..., list[Callable[[], None]]], *args: Any) -> None:
        """Attach one part; where it fails the others go on."""
        try:
            self._undo += watch(*args)
        except Exception as error:
            failed(watch.__name__, error)

    def detach(self) -> None:
        """Put back everything that trace() replaced.

        A communication hook of ``buckets=True`` stays, since DDP never gives one back; from here
        on it only does what PyTorch does without it, or calls the user's own.
        """
        undo, self._undo = self._undo, []
        for step in reversed(undo):
            guarded("detach")(step)()
        self._loop = None
