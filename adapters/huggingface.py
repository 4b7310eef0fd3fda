"""Hugging Face: a callback that traces what ``Trainer.train`` does, as ``trace()`` does for a loop.

A loop of one's own around Accelerate needs none: ``trace()`` takes what ``prepare`` returned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from threading import get_ident
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import Watch
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._around.save import saves
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._library import Attached, evaluates, modules_of
from tracekit.errors import MissingDependency

if find_spec("transformers") is None:
    raise MissingDependency("transformers", "huggingface")

from transformers import TrainerCallback

__all__ = ["TracekitCallback"]

FARTHEST = 16
"""How many callers up the Trainer is looked for."""
_EVENTS = {"learning_rate": "lr"}
"""What the adapter calls the numbers that the Trainer logs under another name."""

_evaluate, _predict = evaluates("evaluate"), evaluates("predict")
_checkpoint = saves("save_checkpoint")


class TracekitCallback(TrainerCallback):  # type: ignore[misc]
    """Traces a Trainer: ``Trainer(..., callbacks=[TracekitCallback()])``, the same on every rank.

    ``buckets`` is that of ``trace()``.
    """

    def __init__(self, buckets: bool = False) -> None:
        self._buckets = buckets
        self._attached: Attached | None = None

    def __reduce__(self) -> Any:
        return type(self), (self._buckets,)

    @guarded("Hugging Face Trainer")
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Everything is prepared; the first batch is not fetched yet."""
        _end_left_ones()
        trainer = _trainer()
        model = kwargs["model"] if trainer is None else trainer.model_wrapped
        loader = kwargs.get("train_dataloader")
        handle = trace(model, kwargs.get("optimizer"), loader, self._buckets)
        self._attached = attached = Attached("Hugging Face Trainer", handle)
        _tracing[get_ident()] = self
        if trainer is None:
            recorder.say_once(
                "Hugging Face Trainer: who calls back is not found: evaluation and checkpoints"
                " are not recorded as such"
            )
            return
        kind = type(trainer)
        attached.undo.append(_callbacks.add(trainer, self))
        attached.replace(kind, "training_step", _until_it_fails, "the end by an exception is")
        attached.replace(kind, "evaluate", _evaluate, "evaluations are")
        attached.replace(kind, "predict", _predict, "predictions are")
        attached.replace(kind, "_save_checkpoint", _checkpoint, "checkpoints of the model are")
        for module in modules_of(trainer):
            if hasattr(module, "skip_first_batches"):
                skip = self._traced_skip
                attached.replace(module, "skip_first_batches", skip, "waits after resuming are")

    def _traced_skip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The first epoch after resuming iterates over a loader that is made for it."""

        @wraps(original)
        def skip_first_batches(*args: Any, **kwargs: Any) -> Any:
            loader = original(*args, **kwargs)
            self._loader_is_made(loader)
            return loader

        return skip_first_batches

    @guarded("Hugging Face Trainer")
    def _loader_is_made(self, loader: Any) -> None:
        if self._attached is not None:
            self._attached.handle.attach_loop(None, loader)

    @guarded("Hugging Face Trainer")
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The numbers that the Trainer logs are the same on all ranks; no device is waited for."""
        if self._attached is None or self._attached.loop is None:
            return
        for name, value in (logs or {}).items():
            if isinstance(value, (int, float)) and name != "epoch":
                recorder.event(_EVENTS.get(name, name), float(value), source="trainer")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The training is over."""
        self.detach()

    @guarded("Hugging Face Trainer")
    def detach(self, error: bool = False) -> None:
        """Put everything back."""
        attached, self._attached = self._attached, None
        if _tracing.get(get_ident()) is self:
            del _tracing[get_ident()]
        if attached is not None:
            attached.detach(error)


_callbacks: Watch[TracekitCallback] = Watch()
_tracing: dict[int, TracekitCallback] = {}
"""By thread: one trains one model at a time."""


def _end_left_ones() -> None:
    """End what a training left that an exception ended elsewhere than in a step."""
    left = _tracing.pop(get_ident(), None)
    if left is not None:
        left.detach()


def _until_it_fails(original: Callable[..., Any]) -> Callable[..., Any]:
    """No callback is told of an exception."""

    @wraps(original)
    def training_step(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            callback = _callbacks.get(self)
            if callback is not None:
                callback.detach(error=True)
            raise

    return training_step


def _trainer() -> Any:
    """The Trainer that calls back: it tells its callbacks all but itself, and the wrapped model."""
    frame = sys._getframe(1)
    for _ in range(FARTHEST):
        found = frame.f_locals.get("self")
        if found is not None and hasattr(type(found), "train") and hasattr(found, "model_wrapped"):
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
