"""``TracekitCallback``: one line in a ``fit`` of tf_keras, of Keras 2 or of Keras 3."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tracekit import recorder
from tracekit.adapters.tensorflow._attach import asked, attach, bind
from tracekit.adapters.tensorflow._facts import tell_epoch, tell_model, tell_strategy
from tracekit.adapters.tensorflow._gradients import loss_scale_of
from tracekit.adapters.tensorflow._guard import guarded, loaded, require
from tracekit.adapters.tensorflow._handle import Handle
from tracekit.adapters.tensorflow._loop import Loop, type_of
from tracekit.adapters.tensorflow._strategy import watch_strategy
from tracekit.adapters.tensorflow._windows import settings_of
from tracekit.errors import MissingDependency

__all__ = ["TracekitCallback"]

_CALLBACKS = {"tf_keras": "tf_keras.callbacks", "keras": "keras.callbacks"}
_made: dict[tuple[type, ...], type] = {}


def _bases() -> tuple[type, ...]:
    """The ``Callback`` of every Keras that the program has loaded, else of the one it would."""
    names = [name for name in _CALLBACKS if name in sys.modules]
    if not names:
        legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
        order = ("tf_keras", "keras") if legacy else ("keras", "tf_keras")
        names = [name for name in order if find_spec(name) is not None][:1]
    if not names:
        raise MissingDependency("keras", "tensorflow")
    return tuple(import_module(_CALLBACKS[name]).Callback for name in names)


class TracekitCallback:
    """Traces a training: ``model.fit(…, callbacks=[TracekitCallback()])``, on every worker.

    ``windows`` is True for a profile of 4 steps in every 100, False for none, or (every, length);
    ``check_gradients`` counts what is not finite in gradients before they are reduced. Raises
    ``MissingDependency`` without TensorFlow or Keras; the training is never disturbed.
    """

    _supports_tf_logs = True
    automatic = False
    """Whether the script knows nothing of it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        require()
        if cls is not TracekitCallback:
            return object.__new__(cls)
        bases = _bases()
        made = _made.get(bases)
        if made is None:
            made = _made[bases] = type("TracekitCallback", (TracekitCallback, *bases), {})
        return object.__new__(made)

    def __init__(
        self, *, windows: bool | Sequence[int] = False, check_gradients: bool = False
    ) -> None:
        self._model: Any = None
        super().__init__()
        self._windows = settings_of(windows)
        self._check = check_gradients
        self._options = {"windows": windows, "check_gradients": check_gradients}
        self._handle: Handle | None = None
        self._loop: Loop | None = None
        self._evaluation: Any = None
        self._batches = self._last = 0
        self._epoch = 0
        self._rate: float | None = None
        self._scale: float | None = None
        self._reads = True
        self._told = False

    def __reduce__(self) -> Any:
        return _again, (self._options,)

    def __deepcopy__(self, memo: Any) -> Any:
        return _again(self._options)

    @property
    def model(self) -> Any:
        """The model that Keras trains."""
        return self._model

    @model.setter
    def model(self, model: Any) -> None:
        self._model = model

    def set_model(self, model: Any) -> None:
        """Keras says which model it is."""
        self._model = model

    def detach(self) -> None:
        """Put everything back, also in the middle of a training."""
        self._finish()

    # The training

    @guarded("callback")
    def on_train_begin(self, logs: Any = None) -> None:
        """Model, optimizer and strategy are complete."""
        self._finish()
        if not self.automatic:
            asked()
        strategy = self._strategy()
        if strategy is not None:
            bind(strategy)
        else:
            recorder.current_or_start()
        handle = Handle(strategy=strategy)
        loop = attach(handle, self._windows, self._check)
        if loop is None:
            return
        self._handle, self._loop = handle, loop
        handle.undo.insert(0, loop.leave)
        loop.in_fit, loop.runs = True, "train_function"
        self._told = False
        if strategy is not None:
            handle.undo += watch_strategy(strategy)
            tell_strategy(loop.recorder, strategy)
        tf = loaded()
        self._reads = tf is not None and not tf.config.get_visible_devices("GPU")

    def _strategy(self) -> Any:
        found = getattr(self._model, "distribute_strategy", None)
        return found if hasattr(found, "extended") else None

    @guarded("callback")
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step begins."""
        if self._loop is not None:
            self._loop.begin_step()
            self._last = int(batch)

    @guarded("callback")
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step's update is done; with ``steps_per_execution`` it covered several batches."""
        loop = self._loop
        if loop is None:
            return
        covered = int(batch) - self._last + 1
        self._batches += covered
        if not self._told:  # a model may be built by its first batch
            self._told = True
            tell_model(loop.recorder, self._model)
        if recorder.pause.on:
            return
        if self._reads:
            self._tell_loss(logs, covered)
            self._tell_rates()

    def _tell_loss(self, logs: Any, covered: int) -> None:
        value = logs.get("loss") if isinstance(logs, Mapping) else None
        if value is None:
            return
        about: dict[str, Any] = {"mean_over": "epoch"}
        if covered > 1:
            about["batches"] = covered
        recorder.event("loss", value, **about)

    def _tell_rates(self) -> None:
        optimizer = getattr(self._model, "optimizer", None)
        rate = _rate_of(optimizer)
        if rate is not None and rate != self._rate:
            self._rate = rate
            recorder.event("lr", rate)
        if not self._check:
            scale = loss_scale_of(optimizer)
            if scale is not None and scale != self._scale:
                self._scale = scale
                recorder.event("loss_scale", scale)

    @guarded("callback")
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        if self._loop is not None:
            self._epoch, self._batches = int(epoch), 0
            recorder.event("epoch", float(epoch))

    @guarded("callback")
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch ends."""
        if self._loop is not None:
            tell_epoch(int(epoch), self._batches)
            if not self._reads:
                self._tell_loss(logs, 1)
                self._tell_rates()

    @guarded("callback")
    def on_train_end(self, logs: Any = None) -> None:
        """Put everything back."""
        self._finish()

    @guarded("callback")
    def _finish(self) -> None:
        handle, self._handle = self._handle, None
        loop, self._loop = self._loop, None
        if loop is not None:
            if loop.in_fit:
                loop.end_step()  # somebody else may trace this loop, and go on
            loop.in_fit, loop.runs = False, ""
        self._leave_evaluation(None)
        if handle is not None:
            handle.detach()

    # Evaluation and prediction

    @guarded("callback")
    def on_test_begin(self, logs: Any = None) -> None:
        """An evaluation begins."""
        self._enter_evaluation("evaluate", "test_function")

    @guarded("callback")
    def on_test_end(self, logs: Any = None) -> None:
        """An evaluation ends."""
        self._leave_evaluation("train_function")

    @guarded("callback")
    def on_predict_begin(self, logs: Any = None) -> None:
        """A prediction begins."""
        self._enter_evaluation("predict", "predict_function")

    @guarded("callback")
    def on_predict_end(self, logs: Any = None) -> None:
        """A prediction ends."""
        self._leave_evaluation("train_function")

    def _enter_evaluation(self, name: str, runs: str) -> None:
        if self._evaluation is None and recorder.current_or_start() is not None:
            self._evaluation = type_of(name, "eval")
            self._evaluation.__enter__()
            if self._loop is not None:
                self._loop.evaluates, self._loop.runs = True, runs

    def _leave_evaluation(self, runs: str | None) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)
            if self._loop is not None:
                self._loop.evaluates = False
                self._loop.runs = runs or self._loop.runs


def _again(options: Mapping[str, Any]) -> TracekitCallback:
    return TracekitCallback(**options)


def _rate_of(optimizer: Any) -> float | None:
    """The learning rate, where it is a number; a schedule runs in the graph."""
    rate: Any = getattr(optimizer, "learning_rate", None)
    try:
        return float(rate.numpy() if hasattr(rate, "numpy") else rate)
    except (TypeError, ValueError, AttributeError):
        return None
