"""What the callbacks of training libraries share: they attach to what calls the model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import Maker, patch
from tracekit.adapters.torch._forward import TracedModel, watch_forward
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop, Phase, loop_here
from tracekit.adapters.torch._trace import Handle

__all__ = ["Attached", "evaluates", "modules_of"]


def evaluates(name: str) -> Maker:
    """What records a method that evaluates, all of it, where the thread's training is traced."""
    phase = Phase(name, "eval")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            loop = loop_here()
            if loop is None:
                return original(*args, **kwargs)
            return loop.run(phase, original, args, kwargs)

        return call

    return make


def modules_of(value: object) -> list[ModuleType]:
    """The modules that make an object what it is, its own class's first."""
    found = (sys.modules.get(cls.__module__) for cls in type(value).__mro__)
    return [module for module in found if module is not None]


class Attached:
    """The handle of one training that a library runs, and what is patched of the library."""

    def __init__(self, library: str, handle: Handle) -> None:
        self.handle = handle
        self._library = library
        self.undo: list[Callable[[], None]] = []
        """What is called, last things first, when it ends."""

    @property
    def loop(self) -> Loop | None:
        """The loop of the training, while it is recorded."""
        return self.handle.loop if self.handle.live else None

    def replace(self, owner: Any, name: str, make: Maker, what: str) -> None:
        """Patch a method of the library; where it has none ``what`` is said to be missing."""
        try:
            self.undo.append(patch(owner, name, make))
        except (AttributeError, TypeError):
            recorder.say_once(f"{self._library}: this version has no {name}: {what} not recorded")

    def forward(self, owner: object, name: str) -> None:
        """Let a method that runs the model be the forward."""
        loop = self.loop
        if loop is not None:
            self.undo += watch_forward(owner, TracedModel(loop), name)

    def detach(self, error: bool = False) -> None:
        """Put everything back; the step that is open ends, with an error if there was one."""
        loop = self.loop
        if error and loop is not None and not loop.recorder.user_steps:
            guarded("step")(loop.recorder.end_step)(error=True)
        undo, self.undo = self.undo, []
        for step in reversed(undo):
            guarded("detach")(step)()
        self.handle.detach()
