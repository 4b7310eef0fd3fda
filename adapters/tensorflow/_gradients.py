"""``check_gradients=True``: what is not finite in the gradients, before they are reduced.

After a reduction all workers have the same, and nobody knows whose it was. A value that is the
largest one of its type is counted apart: it comes from code that clips, and hides an overflow.
Numbers are counted in the graph and only looked at: gradients pass through untouched.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.tensorflow._functions import OPTIMIZERS
from tracekit.adapters.tensorflow._guard import failed, guarded
from tracekit.adapters.tensorflow._loop import Loop

__all__ = ["loss_scale_of", "watch_gradients"]

_SCALED = "tf_keras.src.mixed_precision.loss_scale_optimizer"
_HALF_MAX = 65504.0
"""The largest number of 16 bits, also where it was cast to 32 since."""
_inside = threading.local()


def watch_gradients(loop: Loop) -> list[Callable[[], None]]:
    """Count in what is traced from now on; returns what undoes it."""
    check = _Check(loop)
    if not check.ready:
        return []
    undo: list[Callable[[], None]] = [check.stop]
    loop.check = check
    for module, name, _ in OPTIMIZERS:
        owner = getattr(sys.modules.get(module), name, None)
        # These unscale first, and 65504 / scale looks like any number.
        if module == _SCALED and "get_unscaled_gradients" in vars(owner or object):
            try:
                undo.append(patch(owner, "get_unscaled_gradients", check.unscales))
            except Exception as error:
                failed(f"{name}.get_unscaled_gradients", error)
    loop.updated = (*loop.updated, check.look)
    return undo


class _Check:
    """The counters of one rank, and what was last seen in them."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.ready = False
        self._live = True
        self._seen = (0, 0)
        self._scale: float | None = None
        self._optimizer: Callable[[], Any] = lambda: None
        # In a thread of its own: in this one a strategy may make a variable of all workers of it.
        maker = threading.Thread(target=self._make, name="tracekit-counters")
        maker.start()
        maker.join()

    @guarded("gradient counters")
    def _make(self) -> None:
        tf = sys.modules["tensorflow"]
        with tf.device("/CPU:0"):
            self._counts = tf.Variable([0, 0], trainable=False, dtype=tf.int64, name="tracekit")
        self.ready = True

    def stop(self) -> None:
        """Count no more; graphs that were traced meanwhile go on counting unseen."""
        self._live = False
        self.loop.check = None
        self.loop.updated = tuple(one for one in self.loop.updated if one != self.look)

    # In the graph

    def applies(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``apply(grads, …)`` of Keras 3, ``apply_gradients(pairs, …)`` of the others."""

        @functools.wraps(original)
        def apply(optimizer: Any, given: Any, /, *args: Any, **kwargs: Any) -> Any:
            if getattr(_inside, "one", False) or not self._live:
                return original(optimizer, given, *args, **kwargs)
            given = list(given)
            _inside.one = True
            try:
                # What a strategy calls for each replica is the one inside of a scaling one.
                if _scales(optimizer) or not _scales(self._optimizer()):
                    self._optimizer = weakref.ref(optimizer)
                if _SCALED not in {cls.__module__ for cls in type(optimizer).__mro__}:
                    self._count([one[0] if isinstance(one, tuple) else one for one in given])
                return original(optimizer, given, *args, **kwargs)
            finally:
                _inside.one = False

        return apply

    def unscales(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``get_unscaled_gradients(grads)``: what is scaled is what may be at a maximum."""

        @functools.wraps(original)
        def unscale(optimizer: Any, grads: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._live:
                self._optimizer = weakref.ref(optimizer)
                grads = list(grads)
                self._count(grads)
                _inside.counted = True
            return original(optimizer, grads, *args, **kwargs)

        return unscale

    @guarded("gradient check")
    def _count(self, grads: list[Any]) -> None:
        if getattr(_inside, "counted", False):
            _inside.counted = False  # the inner optimizer applies what was counted scaled
            return
        tf = sys.modules["tensorflow"]
        control: Any = sys.modules.get("tensorflow.python.ops.control_flow_util")
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            if control is not None and control.GraphOrParentsInXlaContext(graph):
                recorder.say_once("gradients are not checked in what XLA compiles")
                return
        bad, most = [], []
        for grad in grads:
            value = getattr(grad, "values", grad)
            if value is None or not hasattr(value, "dtype") or not value.dtype.is_floating:
                continue
            size = tf.abs(value)
            top = size == value.dtype.max
            if value.dtype.size > 2:
                top = tf.logical_or(top, size == tf.constant(_HALF_MAX, value.dtype))
            bad.append(tf.math.count_nonzero(tf.logical_not(tf.math.is_finite(value))))
            most.append(tf.math.count_nonzero(top))
        if bad:
            with tf.device("/CPU:0"):
                self._counts.assign_add(tf.stack([tf.add_n(bad), tf.add_n(most)]))

    # After the update

    @guarded("gradient check")
    def look(self) -> None:
        """Record what was counted in the update that is done."""
        bad, most = (int(one) for one in self._counts.numpy())
        before, self._seen = self._seen, (bad, most)
        rec = self.loop.recorder
        if bad > before[0]:
            rec.event("gradient_nonfinite", float(bad - before[0]), None, {"before": "all_reduce"})
        if most > before[1]:
            rec.event("gradient_saturated", float(most - before[1]), None, {"before": "all_reduce"})
        scale = loss_scale_of(self._optimizer())
        if scale is not None and scale != self._scale:
            self._scale = scale
            rec.event("loss_scale", scale)


def _scales(optimizer: Any) -> bool:
    return "LossScale" in type(optimizer).__name__


def loss_scale_of(optimizer: Any) -> float | None:
    """The loss scale of an optimizer that has one."""
    for name in ("loss_scale", "dynamic_scale"):
        if _scales(optimizer) and hasattr(optimizer, name):
            return float(getattr(optimizer, name).numpy())
    return None
