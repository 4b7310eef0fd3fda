"""Tracing without a word in the script: what it makes of TensorFlow is traced when it is made.

A strategy when it is complete, ``fit`` when it is called, a loop of the script's own from its first
optimizer on. All of it ends when the process stops recording, or when the script asks for tracing
itself: then its own word counts.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters._imported import when_imported
from tracekit.adapters._patch import after_init, patch
from tracekit.adapters.tensorflow._attach import attach as attach_loop
from tracekit.adapters.tensorflow._attach import bind, when_asked
from tracekit.adapters.tensorflow._auto_data import watch_inputs
from tracekit.adapters.tensorflow._callback import TracekitCallback
from tracekit.adapters.tensorflow._calls import calls_of
from tracekit.adapters.tensorflow._checkpoints import watch_checkpoints
from tracekit.adapters.tensorflow._facts import tell_dataset, tell_process, tell_strategy
from tracekit.adapters.tensorflow._functions import watch_optimizers
from tracekit.adapters.tensorflow._guard import failed, guarded
from tracekit.adapters.tensorflow._handle import Handle
from tracekit.adapters.tensorflow._loop import Loop, type_of
from tracekit.adapters.tensorflow._strategy import watch_strategy

__all__ = ["attach"]

_STRATEGY = ("tensorflow.python.distribute.distribute_lib", "StrategyBase")
_WAITS = (
    # These wait for the other workers while they are made.
    (
        "tensorflow.python.distribute.collective_all_reduce_strategy",
        "CollectiveAllReduceStrategy",
    ),
)
_OPTIMIZERS = (
    ("tf_keras.src.optimizers.optimizer", "_BaseOptimizer"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer"),
    ("keras.src.optimizers.optimizer", "_BaseOptimizer"),
    ("keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2"),
    ("tensorflow.python.training.optimizer", "Optimizer"),
)
_MODELS = (
    ("tf_keras.src.engine.training", "Model"),
    ("keras.src.engine.training", "Model"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer"),
)


def attach() -> None:
    """Trace by itself what is made from now on in this process."""
    automatic = _Automatic()
    automatic.begin()
    when_asked(automatic.end)
    recorder.when_stopped(automatic.end)


class _Automatic:
    """What is traced by itself; its methods run inside the script's calls and never raise."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._undo: list[Callable[[], None]] = []
        self._handle = Handle()
        self._loop: Loop | None = None
        self._strategies: list[weakref.ref[Any]] = []
        """Those that nobody watches yet."""
        self._has_strategy = False
        self._fits = threading.local()
        self._patched: set[str] = set()
        self._over = False

    def begin(self) -> None:
        """Look at what is made."""
        self._patch(*_STRATEGY, "__init__", after_init(self.strategy_made))
        for module, name in _WAITS:
            self._patch(module, name, "__init__", _started)
        self._libraries()
        for module in dict.fromkeys(module for module, _ in (*_OPTIMIZERS, *_MODELS)):
            if module not in sys.modules:  # Keras may be what imports TensorFlow
                self._undo.append(when_imported(module, self._libraries))

    @guarded("automatic tracing")
    def end(self) -> None:
        """Put everything back."""
        with self._lock:
            self._over = True
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()
            self._handle.detach()
            self._loop = None

    def _patch(self, module: str, name: str, attribute: str, make: Any) -> None:
        owner = getattr(sys.modules.get(module), name, None)
        key = f"{module}.{name}.{attribute}"
        if not isinstance(owner, type) or attribute not in vars(owner) or key in self._patched:
            return
        try:
            self._undo.append(patch(owner, attribute, make))
            self._patched.add(key)
        except Exception as error:
            failed(f"{name}.{attribute}", error)

    @guarded("automatic tracing")
    def _libraries(self) -> None:
        """Every Keras that is loaded and computes with TensorFlow."""
        with self._lock:
            if self._over:
                return
            before = len(self._patched)
            for module, name in _OPTIMIZERS:
                self._patch(module, name, "__init__", after_init(self.optimizer_made))
            for module, name in _MODELS:
                for method in ("fit", "evaluate", "predict"):
                    self._patch(module, name, method, self._with_callback)
            if self._loop is not None and len(self._patched) > before:
                self._handle.undo += [*watch_optimizers(), *watch_checkpoints()]

    # What is made

    @guarded("automatic tracing")
    def strategy_made(self, strategy: Any) -> None:
        """A strategy is complete; TensorFlow itself has one for those who have none."""
        if type(strategy).__name__.startswith("_"):
            return
        with self._lock:
            self._has_strategy = True
            self._strategies.append(weakref.ref(strategy))
            self._attach()

    @guarded("automatic tracing")
    def optimizer_made(self, optimizer: Any) -> None:
        """Somebody is going to train."""
        with self._lock:
            self._attach()

    def _attach(self) -> None:
        # What attaching makes begins TensorFlow's runtime, which cannot be configured later.
        if self._over or not _runtime_runs() or recorder.current_or_start() is None:
            return
        loop = self._loop
        if loop is None:
            loop = self._loop = attach_loop(self._handle, None, False)
            if loop is None:
                return
            self._handle.undo.insert(0, loop.leave)
            self._handle.undo += watch_inputs(loop)
            loop.updated = (*loop.updated, self._first_update)
        while self._strategies:
            strategy = self._strategies.pop()()
            if strategy is not None:
                bind(strategy)
                self._handle.undo += watch_strategy(strategy)
                tell_strategy(loop.recorder, strategy)

    @guarded("automatic tracing")
    def _first_update(self) -> None:
        """The training is on its way: who made no strategy trains with the one that is there."""
        loop = self._loop
        if loop is None:
            return
        loop.updated = tuple(one for one in loop.updated if one != self._first_update)
        if not loop.in_fit and not self._has_strategy:
            strategy = sys.modules["tensorflow"].distribute.get_strategy()
            bind(strategy)
            tell_strategy(loop.recorder, strategy)

    # fit

    def _with_callback(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._fits, "now", False):
                return original(self_, *args, **kwargs)
            given, undo = self._added(original, self_, args, kwargs) or ((args, kwargs), None)
            self._fits.now = True
            try:
                return original(self_, *given[0], **given[1])
            finally:
                self._fits.now = False
                if undo is not None:
                    undo()

        return call

    @guarded("automatic tracing")
    def _added(
        self, original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], Callable[[], None] | None] | None:
        """The arguments with a callback of ours among them, and what takes it out again."""
        try:
            bound = inspect.signature(original).bind(model, *args, **kwargs)
        except TypeError:
            return None  # what is wrong with them is for Keras to say
        callbacks = bound.arguments.get("callbacks")
        listed = getattr(callbacks, "callbacks", None)  # a CallbackList has its own
        known = listed if isinstance(listed, list) else callbacks
        known = list(known) if isinstance(known, (list, tuple)) else [known] if known else []
        if self._over or any(isinstance(one, TracekitCallback) for one in known):
            return None
        data = bound.arguments.get("x")
        if hasattr(data, "element_spec") and getattr(original, "__name__", "") == "fit":
            tell_dataset(data)
        ours: Any = TracekitCallback()
        ours.automatic = True
        if isinstance(listed, list):
            ours.set_model(model)
            listed.append(ours)
            return (args, kwargs), functools.partial(listed.remove, ours)
        bound.arguments["callbacks"] = [*known, ours]
        return (bound.args[1:], bound.kwargs), None


def _started(original: Callable[..., Any]) -> Callable[..., Any]:
    """That this worker waits for the others, so that one that never joins is named."""

    @functools.wraps(original)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        rec = recorder.current_or_start()
        if rec is None:
            original(self, *args, **kwargs)
            return
        tell_process(rec)
        start = calls_of(rec).call("start", "barrier", "strategy start", keep=False)
        with type_of("strategy start", "init"), start:
            original(self, *args, **kwargs)

    return __init__


def _runtime_runs() -> bool:
    """Whether TensorFlow's runtime has begun, and not for a graph of the script's own as in 1.x:
    what attaching makes would be part of that."""
    tf = sys.modules["tensorflow"]
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return False
    module = sys.modules.get("tensorflow.python.eager.context")
    context: Any = module.context() if module is not None else None
    return bool(getattr(context, "_initialized", False))
