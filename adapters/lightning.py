"""Lightning: a callback that traces what ``Trainer.fit`` does, as ``trace()`` does for a loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tracekit.adapters.torch import trace
from tracekit.adapters.torch._around.save import saves
from tracekit.adapters.torch._comm.arrivals import Arrivals
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._library import Attached, evaluates, modules_of
from tracekit.adapters.torch._optimizer import updates_of
from tracekit.errors import MissingDependency

__all__ = ["TracekitCallback"]

_PACKAGES = {
    "lightning": "lightning.pytorch.callbacks",
    "pytorch_lightning": "pytorch_lightning.callbacks",
}


def _bases() -> tuple[type, ...]:
    """The ``Callback`` of every Lightning there is: a Trainer knows that of its own package."""
    installed = [module for package, module in _PACKAGES.items() if find_spec(package) is not None]
    if not installed:
        raise MissingDependency("lightning", "lightning")
    return tuple(import_module(module).Callback for module in installed)


_Callback: Any = type("_Callback", _bases(), {})

_validation = evaluates("validation")
_checkpoint = saves("save_checkpoint")


class TracekitCallback(_Callback):  # type: ignore[misc]
    """Traces a Trainer: ``Trainer(callbacks=[TracekitCallback()])``, the same on every rank.

    ``buckets`` is that of ``trace()``.
    """

    def __init__(self, buckets: bool = False) -> None:
        super().__init__()
        self._buckets = buckets
        self._attached: Attached | None = None
        self._trainer: Any = None
        self._optimizers: list[Any] = []
        self._updates = 0

    def __reduce__(self) -> Any:
        return type(self), (self._buckets,)

    @guarded("Lightning")
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Strategy, model and optimizers are complete; the loaders are not made yet."""
        self._detach()
        handle = trace(trainer.model, buckets=self._buckets)
        self._attached = attached = Attached("Lightning", handle)
        self._trainer = trainer
        self._optimizers = [_really(optimizer) for optimizer in trainer.optimizers]
        for optimizer in self._optimizers:
            handle.attach_loop(optimizer, None)
        if not pl_module.automatic_optimization and handle.loop is not None:
            handle.loop.stepper = self
            self._updates = self._made()
        attached.forward(trainer.strategy, "training_step")
        fit_loop = trainer.fit_loop
        loaders = next((m for m in modules_of(fit_loop) if hasattr(m, "CombinedLoader")), None)
        combined = getattr(loaders, "CombinedLoader", None)
        attached.replace(combined, "__iter__", self._traced_iter, "waits for data are")
        validation = getattr(getattr(fit_loop, "epoch_loop", None), "val_loop", None)
        attached.replace(type(validation), "run", _validation, "validations are")
        attached.replace(type(trainer), "save_checkpoint", _checkpoint, "checkpoints are")

    def _traced_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The first iterator is made before any hook is called with the loaders."""

        @wraps(original)
        def __iter__(combined: Any, /) -> Any:
            self._loaders_are_there(combined)
            return original(combined)

        return __iter__

    @guarded("Lightning")
    def _loaders_are_there(self, combined: Any) -> None:
        attached = self._attached
        if attached is not None and combined is self._trainer.fit_loop._combined_loader:
            for loader in combined.flattened:
                attached.handle.attach_loop(None, loader)

    # Optimization that the user does in training_step, with any number of updates

    @guarded("Lightning")
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """DDP's forward is not over yet, and its gradients are reduced already."""
        loop = self._attached.loop if self._attached is not None else None
        if loop is not None and not pl_module.automatic_optimization:
            for replica in loop.synchronised:
                if isinstance(replica, Arrivals):
                    replica.are_expected()

    @guarded("Lightning")
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch with updates in it was a step."""
        loop = self._attached.loop if self._attached is not None else None
        if loop is not None and loop.stepper is self:
            made = self._made()
            if made != self._updates:
                self._updates = made
                loop.optimizer_ends()

    def _made(self) -> int:
        known = [updates_of(optimizer) for optimizer in self._optimizers]
        return sum(updates.made for updates in known if updates is not None)

    # The end

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Put everything back."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training is over; the exception is the user's."""
        self._detach(error=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning's tuners leave a fit without a word."""
        self._detach()

    @guarded("Lightning")
    def _detach(self, error: bool = False) -> None:
        attached, self._attached = self._attached, None
        self._trainer, self._optimizers = None, []
        if attached is not None:
            loop = attached.loop
            attached.detach(error)
            if loop is not None and loop.stepper is self:
                loop.stop_steps()


def _really(optimizer: Any) -> Any:
    """The optimizer that steps, where Lightning's wrapper around it was handed out."""
    return optimizer.optimizer if hasattr(optimizer, "toggle_model") else optimizer
