"""One worker of a training in which something is wrong, or nothing.

python worker_job.py NAME FOLDER, with TF_CONFIG
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if os.environ.get("LOOPBACK_IS_DOWN"):  # in a network of its own
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

import tensorflow as tf

import tracekit
from tracekit.adapters.tensorflow import TracekitCallback, trace_dataset, trace_strategy

STEPS = 30


def started() -> Any:
    """A strategy of all workers, once all have come."""
    made = trace_strategy(tf.distribute.MultiWorkerMirroredStrategy, check_gradients=True)
    return made.strategy


def loop(wrong: bool, folder: Path) -> None:
    """A loop of one's own; wrong is the second worker, and how losses are put together."""
    import tf_keras as keras

    strategy = started()
    rank = strategy.cluster_resolver.task_id
    odd = wrong and rank == 1

    def batches(context: Any) -> Any:
        data = tf.data.Dataset.range(STEPS - 4 if odd else STEPS)
        return data.map(lambda number: batch_of(number, rank, odd))

    data = strategy.distribute_datasets_from_function(batches)
    trace_dataset(data)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    saved = {"model": model, "optimizer": optimizer}
    if odd:
        saved["more"] = tf.Variable(tf.zeros([3]))

    def replica_step(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(model(features) - targets), -1)
            part = tf.nn.compute_average_loss(errors, global_batch_size=16)
        gradients = tape.gradient(part, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_mean(errors) if wrong else part

    step = tf.function(
        lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)
    )
    checkpoint = tf.train.Checkpoint(**saved)
    for number, batch in enumerate(data):
        tracekit.event("loss", value=step(batch))
        if number == 10:
            checkpoint.save(str(folder / f"saved-{rank}"))


def batch_of(number: Any, rank: int, odd: bool) -> Any:
    """Eight samples of this worker's own; one batch of the odd one has what is no number."""
    features = tf.random.stateless_uniform((8, 4), tf.stack([number, rank]))
    if odd:
        features = tf.where(number == 12, tf.fill((8, 4), float("nan")), features)
    return features, tf.reduce_sum(features, 1, True)


def fit(library: str, make: Callable[[], Any], folder: Path) -> None:
    """``fit`` for thirty steps."""
    keras = __import__(library)
    strategy = make()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    features = tf.random.stateless_uniform((STEPS * 16, 4), (1, 2))
    data = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, 1, True)))
    data = data.repeat().batch(16)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model.fit(
        data.with_options(options),
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[TracekitCallback()],
    )


def few_files(folder: Path) -> None:
    """One file, dealt out by files."""
    strategy = started()
    path = folder / f"only-{os.getpid()}.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(32):
            writer.write(str(number).encode())
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    data = tf.data.TFRecordDataset([str(path)]).batch(8).with_options(options)
    distributed = strategy.experimental_distribute_dataset(data)
    trace_dataset(distributed)
    for _ in distributed:
        pass


def save(folder: Path) -> None:
    """Both save together once; then the first worker alone, whose save reads from all, while the
    second one waits for the first to be done."""
    import tf_keras as keras

    strategy = started()
    rank = strategy.cluster_resolver.task_id
    with strategy.scope():
        layers = [keras.layers.Dense(4, input_shape=(4,)), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model)

    def replica_step(features: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, training=True) - targets)) / 2
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch))
    for number in range(200):
        step(batch_of(tf.constant(number, tf.int64), rank, False))
        if number == STEPS or (number == 2 * STEPS and rank == 0):
            checkpoint.save(str(folder / f"saved-{rank}"))
        while number == 2 * STEPS and rank == 1 and not (folder / "saved-0-2.index").exists():
            time.sleep(0.1)


JOBS: dict[str, Callable[[Path], None]] = {
    "wrong": functools.partial(loop, True),
    "sound": functools.partial(loop, False),
    "fit": functools.partial(fit, "tf_keras", started),
    "fit_of_keras_3": functools.partial(fit, "keras", started),
    "mirrored": functools.partial(fit, "tf_keras", tf.distribute.MirroredStrategy),
    "few_files": few_files,
    "save": save,
}

if __name__ == "__main__":
    JOBS[sys.argv[1]](Path(sys.argv[2]))
