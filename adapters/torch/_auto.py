"""Tracing without a word in the script: what it makes of PyTorch is traced when it is made.

A DDP object when it is complete; any other model, FSDP's too, when an optimizer is made of its
parameters; a loader when the thread of the training iterates over it. All of it ends when the
process stops recording, or when the script calls ``trace()``: then its own word counts.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tracekit import recorder
from tracekit.adapters._patch import after_init, patch
from tracekit.adapters.torch._around.loader import watch_loader, watch_unknown_loaders
from tracekit.adapters.torch._comm.collectives import watch_collectives
from tracekit.adapters.torch._comm.compositions import watch_compositions
from tracekit.adapters.torch._comm.functional import watch_functional
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop, loop_here
from tracekit.adapters.torch._roots import inner_modules, parameters_of, roots_of
from tracekit.adapters.torch._trace import Handle, when_asked
from tracekit.adapters.torch._trace import attach as attach_model
from tracekit.recorder import clock

__all__ = ["attach"]

SEARCH_NS = 5_000_000_000
SEARCH_SHARE = 0.01
"""How long all objects may be searched for models: this, and so much of the time that passed."""
DEEPEST = 3
"""How far below a model is looked for modules that the loop calls instead of it."""

Undo = list[Callable[[], None]]


def attach() -> None:
    """Trace by itself what is made from now on in this process."""
    automatic = _Automatic()
    automatic.begin()
    when_asked(automatic.end)
    recorder.when_stopped(automatic.end)


@dataclass(slots=True)
class _Traced:
    """A model that is traced, held weakly."""

    model: weakref.ref[torch.nn.Module]
    handle: Handle
    depth: int = 0


class _Automatic:
    """What is traced by itself; its methods run inside the script's calls and never raise."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._undo: Undo = []
        self._traced: list[_Traced] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._loaders: dict[int, tuple[Any, Undo]] = {}
        self._gone: deque[int] = deque()
        self._began = clock()
        self._searched_ns = 0

    def begin(self) -> None:
        """Look at what is made."""
        self._undo = [
            patch(DistributedDataParallel, "__init__", after_init(self.model_made)),
            patch(torch.optim.Optimizer, "__init__", after_init(self.optimizer_made)),
            *watch_unknown_loaders(DataLoader, self),
            *watch_collectives(),
            *watch_compositions(),
            *watch_functional(),
        ]

    @guarded("automatic tracing")
    def end(self) -> None:
        """Put everything back."""
        with self._lock:
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()
            for key in list(self._loaders):
                self._forget_loader(key)
            while self._traced:
                self._traced.pop().handle.detach()
            self._optimizers.clear()

    # What is made

    @guarded("automatic tracing")
    def model_made(self, model: torch.nn.Module) -> None:
        """A DDP object is complete: from now on it is the model, and not what is in it."""
        with self._lock:
            self._tidy()
            self._trace_instead(model)

    @guarded("automatic tracing")
    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer has its parameters: trace it, and the models around them."""
        with self._lock:
            self._tidy()
            left = parameters_of(optimizer)
            if not left:
                return
            self._optimizers.append(weakref.ref(optimizer))
            for traced in self._traced:
                if self._holds(traced, left):
                    self._attach_optimizers(traced)
                    model = traced.model()
                    left -= set(map(id, model.parameters())) if model is not None else set()
            for root in self._search(left):
                self._trace_instead(root)

    @guarded("automatic tracing")
    def meet(self, loader: Any) -> Loop | None:
        """A loader is iterated over: watch it where the training takes its batches from it.

        Returns the loop where an evaluation does. That is known by gradients that are off, or by
        models that are all in evaluation mode.
        """
        loop = loop_here()
        if loop is None or loop.waits:
            return None
        if not torch.is_grad_enabled() or not self._trains(loop):
            return loop
        self._watch(loader, loop)
        return None

    @guarded("automatic tracing")
    def trains_from(self, loader: weakref.ref[Any]) -> None:
        """Steps were made with the batches of a loader while models were in evaluation mode."""
        found, loop = loader(), loop_here()
        if found is not None and loop is not None:
            self._watch(found, loop)

    def _watch(self, loader: Any, loop: Loop) -> None:
        with self._lock:
            self._tidy()
            undo = watch_loader(loader, loop)
            if undo:
                key = id(loader)
                gone = weakref.finalize(loader, self._gone.append, key)
                gone.atexit = False
                self._loaders[key] = gone, undo

    def _trains(self, loop: Loop) -> bool:
        models = [traced.model() for traced in self._traced if traced.handle.loop is loop]
        return not models or any(model is not None and model.training for model in models)

    # How it is traced

    def _trace_instead(self, model: torch.nn.Module) -> None:
        """Trace a model, and no longer what it contains."""
        inside = set(map(id, model.modules()))
        inner = [traced for traced in self._traced if id(traced.model()) in inside]
        if len(inner) == 1 and inner[0].model() is model:
            return
        loop = loop_here()
        if loop is not None:
            loop.users += 1  # it is to outlive its last model
        try:
            for traced in inner:
                self._traced.remove(traced)
                traced.handle.detach()
            self._trace(model)
        finally:
            if loop is not None:
                loop.leave()

    def _trace(self, model: torch.nn.Module, depth: int = 0) -> None:
        handle = attach_model(model)
        traced = _Traced(weakref.ref(model), handle, depth)
        self._traced.append(traced)
        if handle.loop is not None:
            handle.loop.without_forward = functools.partial(self._look_again, handle.loop)
        self._attach_optimizers(traced)

    def _attach_optimizers(self, traced: _Traced) -> None:
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None and self._holds(traced, parameters_of(optimizer)):
                traced.handle.attach_loop(optimizer, None)

    def _holds(self, traced: _Traced, parameters: set[int]) -> bool:
        model = traced.model()
        return model is not None and any(id(one) in parameters for one in model.parameters())

    def _search(self, parameters: set[int]) -> list[torch.nn.Module]:
        """The models around parameters."""
        if not parameters:
            return []
        began = clock()
        if self._searched_ns > SEARCH_NS + SEARCH_SHARE * (began - self._began):
            recorder.say_once(
                "PyTorch adapter: this script makes very many models; some that are not DDP's are"
                " not traced by themselves, trace() does it"
            )
            return []
        found = roots_of(parameters)
        self._searched_ns += clock() - began
        return found

    @guarded("automatic tracing")
    def _look_again(self, loop: Loop) -> None:
        """An update without a forward: the loop calls something around the model, or inside it."""
        with self._lock:
            loop.without_forward = None
            self._tidy()
            here = [traced for traced in self._traced if traced.handle.loop is loop]
            known = {id(traced.model()) for traced in here}
            optimizers = [reference() for reference in self._optimizers]
            held = [parameters_of(one) for one in optimizers if one is not None]
            outer = [m for m in self._search(set().union(*held)) if id(m) not in known]
            for root in outer:
                self._trace_instead(root)
            deepest = max((traced.depth for traced in here), default=0)
            if outer or deepest == DEEPEST:
                return
            for traced in here:
                model = traced.model() if traced.depth == deepest else None
                for inner in inner_modules(model) if model is not None else ():
                    if id(inner) not in known:
                        self._trace(inner, deepest + 1)

    # What is gone

    def _tidy(self) -> None:
        """Let go of what has died; not when it dies, which may be in the middle of anything."""
        while self._gone:
            self._forget_loader(self._gone.popleft())
        for traced in [one for one in self._traced if one.model() is None]:
            self._traced.remove(traced)
            traced.handle.detach()
        self._optimizers = [one for one in self._optimizers if one() is not None]

    def _forget_loader(self, key: int) -> None:
        gone, undo = self._loaders.pop(key)
        gone.detach()
        for step in undo:
            step()
