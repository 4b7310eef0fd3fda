"""The optimizer's step, which ends a training step."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.torch._around.rates import watch_rates
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import OPTIMIZER, Loop

__all__ = ["Updates", "updates_of", "watch_optimizer"]


MOST_IDLE = 256
"""Updates of other optimizers after which one that made none no longer ends steps."""


def watch_optimizer(optimizer: Any, loop: Loop) -> list[Callable[[], None]]:
    """Record the steps of an optimizer; returns what undoes it.

    The first optimizer of a loop is the one whose step ends a training step; another follows it
    when it is gone, or when it was not used for very long.
    """
    inner = optimizer.optimizer if hasattr(type(optimizer), "step_was_skipped") else optimizer
    if _optimizers.get(optimizer) is not None or _optimizers.get(inner) is not None:
        return []
    watched = Updates(loop)
    undo = [_optimizers.add(optimizer, watched, watched.is_gone), watched.stop]
    if hasattr(inner, "param_groups"):
        watched.updated = watch_rates(inner, loop, main=loop.stepper is None)
    if loop.stepper is None:
        loop.stepper = watched
    try:
        if inner is not optimizer:
            _see_through(watched, optimizer)
        # Accelerate's wrapper has a step of its own where a scheduler was made of it, and is
        # pickled with all that it has.
        if isinstance(optimizer, torch.optim.Optimizer) and (
            inner is optimizer or "step" in vars(optimizer)
        ):
            undo.append(_replace_step(optimizer, watched))
        else:
            undo.append(patch(type(optimizer), "step", _traced_method))
    except Exception as error:
        recorder.say_once(
            f"PyTorch adapter: the steps of {type(optimizer).__name__} are not recorded ({error});"
            " mark them with tracekit.step(i)"
        )
    return undo


def updates_of(optimizer: Any) -> Updates | None:
    """What is known of a traced optimizer's updates."""
    return _optimizers.get(optimizer)


class Updates:
    """The updates of one traced optimizer."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.made = 0
        self._unused: float = 0
        self.updated: Callable[[], None] | None = None
        self.watched: Callable[[], None] | None = None
        """What a gradient scaler wants to know of the update that it lets the optimizer make."""
        self.scale: float | None = None
        self.idle: Callable[[], bool] | None = None
        """Whether a call of ``step`` does nothing."""

    def step(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        loop = self._loop
        if loop.open & OPTIMIZER.bit or (self.idle is not None and self.idle()):
            return call(*args, **kwargs)
        if loop.stepper is self:
            self._unused = 0
        else:
            self._follow()
        closure = None
        if args or kwargs:
            closure = next((one for one in (*args[:2], *kwargs.values()) if callable(one)), None)
        if closure is not None:
            result = self._around(closure, call, args, kwargs)
        else:
            if not (loop.forwards and loop.step_open):
                loop.optimizer_begins()
            result = loop.run(OPTIMIZER, call, args, kwargs)
        self.made += 1
        if self.updated is not None:
            self.updated()
        if self.watched is not None:
            self.watched()
        if loop.stepper is self:
            loop.optimizer_ends()
        return result

    def _follow(self) -> None:
        """End steps in place of an optimizer that does so no more."""
        stepper = self._loop.stepper
        if isinstance(stepper, Updates):
            stepper._unused += 1
            if stepper._unused > MOST_IDLE:
                self._unused = 0
                self._loop.stepper = self

    def is_gone(self) -> None:
        """The optimizer has died: the next one that makes an update ends steps."""
        self._unused = math.inf

    def _around(self, closure: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An update that calls for its loss: forward and backward are no part of the phase.

        Each time the closure returns the phase begins.
        """
        loop = self._loop
        with contextlib.ExitStack() as phase:

            @functools.wraps(closure)
            def traced(*args: Any, **kwargs: Any) -> Any:
                phase.close()
                result = closure(*args, **kwargs)
                loop.optimizer_begins()
                phase.enter_context(loop.inside(OPTIMIZER))
                return result

            args = tuple(traced if one is closure else one for one in args)
            kwargs = {name: traced if one is closure else one for name, one in kwargs.items()}
            return call(*args, **kwargs)

    def skipped(self) -> None:
        """A gradient scaler left the update out: the step ends as with one."""
        loop = self._loop
        loop.optimizer_begins()
        if loop.stepper is self:
            loop.optimizer_ends()

    def stop(self) -> None:
        if self._loop.stepper is self:
            self._loop.stop_steps()


_optimizers: Watch[Updates] = Watch()


def _see_through(updates: Updates, wrapper: Any) -> None:
    """Accelerate's wrapper does nothing while gradients accumulate.

    With a gradient scaler it calls a method of the optimizer inside that it kept from the
    beginning, so that one cannot be traced instead.
    """
    reference = weakref.ref(wrapper)

    def idle() -> bool:
        state = getattr(reference(), "gradient_state", None)
        return not getattr(state, "sync_gradients", True)

    @guarded("gradient scaling")
    def check() -> None:
        if getattr(reference(), "step_was_skipped", False):
            recorder.event("optimizer_skipped")

    updates.idle, updates.watched = idle, check


def _traced_method(original: Callable[..., Any]) -> Callable[..., Any]:
    """For optimizers that are not torch's."""

    @functools.wraps(original)
    def step(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        watched = _optimizers.get(self)
        if watched is None:
            return original(self, *args, **kwargs)
        return watched.step(original, (self, *args), kwargs)

    return step


class _Step:
    """Stands in for the bound method ``optimizer.step`` without keeping the optimizer alive.

    It lies in the optimizer's own dictionary, as a learning rate scheduler puts its wrapper
    there: pickles and copies of a torch optimizer leave that out. A scheduler made earlier is
    called through; one made later finds the ``__func__`` that it asks for.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, updates: Updates) -> None:
        current = optimizer.step
        self._optimizer = weakref.ref(optimizer)
        self._own = vars(optimizer).get("step")
        self._function = current.__func__ if isinstance(current, types.MethodType) else None
        functools.update_wrapper(self, current)
        self.updates: Updates | None = updates
        del self.__wrapped__  # type: ignore[attr-defined]
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(current)

    @property
    def __self__(self) -> Any:
        return self._optimizer()

    @property
    def __func__(self) -> Callable[..., Any]:
        def step(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return functools.update_wrapper(step, self._function or self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = self._optimizer()
        function = self._function
        call = types.MethodType(function, optimizer) if function is not None else self._own
        assert call is not None
        updates = self.updates
        if updates is None or is_compiling():
            return call(*args, **kwargs)
        return updates.step(call, args, kwargs)


def _replace_step(optimizer: torch.optim.Optimizer, updates: Updates) -> Callable[[], None]:
    ours = _Step(optimizer, updates)
    own = vars(optimizer).get("step")
    optimizer.step = ours  # type: ignore[method-assign]
    reference = weakref.ref(optimizer)

    def put_back() -> None:
        ours.updates = None
        optimizer = reference()
        # A scheduler that was made meanwhile has wrapped ours: then ours passes through below it.
        if optimizer is not None and vars(optimizer).get("step") is ours:
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own  # type: ignore[method-assign]

    return put_back
