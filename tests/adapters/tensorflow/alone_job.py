"""Trainings of one process with two replicas, each a run of its own: some wrong, some sound.

python alone_job.py FOLDER NAME...
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tf_keras as keras

import tracekit
from tracekit.adapters.tensorflow import TracekitCallback, trace_dataset, trace_strategy

FEATURES = np.random.RandomState(0).rand(64, 4).astype("float32")
TARGETS = FEATURES.sum(1, keepdims=True)
LIMIT = 65504.0


@functools.cache
def mirrored(*devices: str) -> Any:
    """One strategy for all runs: two of them mistake each other's collectives for their own."""
    return tf.distribute.MirroredStrategy(devices or ("CPU:0", "CPU:1"))


# Loops of one's own


def loop(
    mean: bool = True,
    reduce: str | None = "MEAN",
    outside: bool = False,
    buffer: int = 64,
    devices: tuple[str, ...] = (),
    told: bool = False,
    inside: bool = False,
) -> None:
    """Train for 24 steps; losses are reduced ``outside`` of the graph or ``inside`` of the step."""
    strategy = mirrored(*devices)
    handle = trace_strategy(strategy)
    data = tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).shuffle(buffer).batch(16)
    data = strategy.experimental_distribute_dataset(data)
    reader = trace_dataset(tf.data.Dataset.from_tensor_slices(FEATURES).shuffle(buffer))
    with strategy.scope():
        weights = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(weights.trainable_variables)

    def replica_step(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(weights(features) - targets), -1)
            whole = tf.nn.compute_average_loss(errors, global_batch_size=16)
        gradients = tape.gradient(whole, weights.trainable_variables)
        optimizer.apply_gradients(zip(gradients, weights.trainable_variables, strict=True))
        if inside:
            return tf.distribute.get_replica_context().all_reduce(reduce_op="SUM", value=whole)
        return tf.reduce_mean(errors) if mean else whole

    def together(value: Any) -> Any:
        if reduce == "local":
            return strategy.experimental_local_results(value=value)[0]
        return (
            value if reduce is None else strategy.reduce(reduce_op=reduce, value=value, axis=None)
        )

    if outside:
        compiled = tf.function(replica_step)

        def step(batch: Any) -> Any:
            return together(strategy.run(compiled, args=batch))

    else:
        step = tf.function(lambda batch: together(strategy.run(replica_step, args=batch)))
    for _ in range(6):
        for batch in data:
            loss = step(batch)
            if told:
                tracekit.event("loss", value=loss)
    reader.detach()
    handle.detach()


# fit


def clipped(value: Any) -> Any:
    """The value; of its gradient what overflows becomes the largest number."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def pass_on(value: Any) -> Any:
        return value, lambda upstream: tf.clip_by_value(upstream, -LIMIT, LIMIT)

    return pass_on(value)


class Scale(keras.layers.Layer):  # type: ignore[misc]
    """Multiplies by weights, whose gradients may be clipped."""

    def __init__(self, clips: bool) -> None:
        super().__init__()
        self.clips = clips

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(int(shape[-1]),), initializer="ones")

    def call(self, x: Any) -> Any:
        w = tf.cast(self.w, x.dtype)
        return x * (clipped(w) if self.clips else w)


def fit(
    clips: bool = False, targets: Any = TARGETS, slow: bool = False, alone: bool = False
) -> None:
    """48 steps of 16 bits with a scale from 32,768 on; two replicas, or one of a wider model."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    strategy = tf.distribute.get_strategy() if alone else mirrored()
    with strategy.scope():
        wide = [keras.layers.Dense(1024), keras.layers.Dense(1024)] if alone else []
        model = keras.Sequential([Scale(clips), *wide, keras.layers.Dense(1, dtype="float32")])
        optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1e-4))
        model.compile(optimizer, "mse")
    data = tf.data.Dataset.from_tensor_slices((FEATURES, targets)).shuffle(64).batch(16)
    if slow:
        data = data.map(late)
    callback = TracekitCallback(check_gradients=True)
    model.fit(data.prefetch(1), epochs=12, verbose=0, callbacks=[callback])
    keras.mixed_precision.set_global_policy("float32")


def late(*batch: Any) -> Any:
    """The same batch, 60 ms later."""

    def wait(*values: Any) -> Any:
        time.sleep(0.06)
        return values

    found = tf.numpy_function(wait, batch, [one.dtype for one in batch])
    for one, before in zip(found, batch, strict=True):
        one.set_shape(before.shape)
    return tuple(found)


RUNS: dict[str, Callable[[], None]] = {
    "summed_means": functools.partial(loop, reduce="SUM"),
    "summed_parts": functools.partial(loop, reduce="SUM", mean=False),
    "reduced_means": loop,
    "summed_outside": functools.partial(loop, reduce="SUM", outside=True),
    "reduced_outside": functools.partial(loop, outside=True),
    "never": functools.partial(loop, reduce=None, told=True),
    "never_outside": functools.partial(loop, reduce=None, outside=True),
    "reduced_inside": functools.partial(loop, reduce=None, inside=True),
    "looked_at": functools.partial(loop, reduce="local"),
    "little_buffer": functools.partial(loop, buffer=8),
    "saturated": functools.partial(fit, clips=True, targets=TARGETS * 1000),
    "overflows": functools.partial(fit, targets=TARGETS * 1000),
    "collapse": functools.partial(fit, targets=TARGETS * np.float32(1e30)),
    "slow_input": functools.partial(fit, slow=True, alone=True),
    "quick_input": functools.partial(fit, alone=True),
    "sound": fit,
    "one_device": functools.partial(loop, devices=("CPU:0",)),
}


def main() -> None:
    folder, *names = sys.argv[1:]
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, parts)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    for name in names or RUNS:
        tracekit.start(run=name, dir=folder, agent=False)
        RUNS[name]()
        tracekit.stop()


if __name__ == "__main__":
    main()
