"""Which calls are looked at: functions of TensorFlow, and what applies gradients."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.tensorflow._guard import failed
from tracekit.adapters.tensorflow._loop import active

__all__ = ["OPTIMIZERS", "watch_functions", "watch_optimizers"]

_FUNCTION = (
    ("tensorflow.python.eager.polymorphic_function.polymorphic_function", "PolymorphicFunction"),
    ("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function"),
    ("tensorflow.python.eager.def_function", "Function"),
)
OPTIMIZERS = (
    # module, class, method: the outermost one of each library
    ("tf_keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("tf_keras.src.mixed_precision.loss_scale_optimizer", "LossScaleOptimizer", "apply_gradients"),
    (
        "tf_keras.src.mixed_precision.loss_scale_optimizer",
        "LossScaleOptimizerV3",
        "apply_gradients",
    ),
    ("keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    ("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer", "apply"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    ("tensorflow.python.training.optimizer", "Optimizer", "apply_gradients"),
)


def watch_functions() -> list[Callable[[], None]]:
    """Look at every outermost call of a ``tf.function``; returns what undoes it."""
    for module, name in _FUNCTION:
        owner = getattr(sys.modules.get(module), name, None)
        if isinstance(owner, type):
            return [patch(owner, "__call__", _function)]
    recorder.say_once("this version of TensorFlow hides its functions: steps need tracekit.step()")
    return []


def _function(original: Callable[..., Any]) -> Callable[..., Any]:
    executing_eagerly = sys.modules["tensorflow"].executing_eagerly

    @functools.wraps(original)
    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        loop = active()
        if loop is None or not (loop.inside or executing_eagerly()):
            return original(self, *args, **kwargs)
        name = loop.runs or _name_of(self)
        return loop.run(name, self, original, (self, *args), kwargs)

    return __call__


def _name_of(function: Any) -> str:
    """The name of the function in Python."""
    try:
        name = function._name or function.python_function.__name__
    except AttributeError:
        name = "tf.function"
    return str(name)[:60]


def watch_optimizers() -> list[Callable[[], None]]:
    """Look at what applies gradients, of every library that is loaded."""
    undo = []
    for module, name, method in OPTIMIZERS:
        owner = getattr(sys.modules.get(module), name, None)
        if not isinstance(owner, type) or method not in vars(owner):
            continue
        try:
            undo.append(patch(owner, method, _applies))
        except Exception as error:
            failed(f"{name}.{method}", error)
    return undo


def _applies(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        loop = active()
        if loop is None:
            return original(self, *args, **kwargs)
        checked = original if loop.check is None else loop.check.applies(original)
        if loop.inside:
            loop.mark()
            return checked(self, *args, **kwargs)

        def eager(*args: Any, **kwargs: Any) -> Any:
            loop.mark()
            return checked(*args, **kwargs)

        return loop.run("apply_gradients", None, eager, (self, *args), kwargs)

    return apply
