"""``check_gradients=True``: what is counted before gradients are reduced."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.adapters.tensorflow.small import fit, model_of, same
from tests.adapters.torch.tape import Tape
from tracekit.adapters.tensorflow import TracekitCallback

both = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras3", "tf_keras"])


def broken(library: Any, value: float) -> Any:
    """A model whose gradient by its first weights is a constant everywhere."""

    def gradient(x: Any) -> Any:
        return x, lambda upstream: tf.fill(tf.shape(upstream), tf.constant(value))

    replace = tf.custom_gradient(gradient)

    class Replaced(library.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return replace(x)

    model = library.Sequential([library.layers.Dense(2), Replaced(), library.layers.Dense(1)])
    model.compile(optimizer=library.optimizers.SGD(0.0), loss="mse")
    return model


@both
def test_what_is_not_finite_is_counted(library: Any, tape: Tape) -> None:
    fit(broken(library, np.nan), [TracekitCallback(check_gradients=True)], epochs=1)
    counted = tape.events("gradient_nonfinite")
    assert counted[0].value == 10  # 4 × 2 weights and 2 biases
    assert counted[0].attributes == {"before": "all_reduce"}
    assert tape.events("gradient_saturated") == []


@both
def test_healthy_gradients_say_nothing(library: Any, tape: Tape) -> None:
    fit(model_of(library), [TracekitCallback(check_gradients=True)])
    assert [e.name for e in tape.events() if e.name.startswith("gradient")] == []


@both
def test_a_loss_scale_is_told_when_it_changes(library: Any, tape: Tape) -> None:
    def scaled() -> Any:
        inner = library.optimizers.SGD(0.01)
        if library is keras:
            return keras.optimizers.LossScaleOptimizer(inner)
        return tf_keras.mixed_precision.LossScaleOptimizer(inner)

    plain = fit(model_of(library, optimizer=scaled()), [])
    checked = fit(model_of(library, optimizer=scaled()), [TracekitCallback(check_gradients=True)])
    assert same(plain, checked)
    assert [event.value for event in tape.events("loss_scale")] == [2.0**15]
