"""One worker of a small MultiWorkerMirroredStrategy training that profiles four of its steps.

python job.py RANK PORT,PORT… FOLDER fit|custom|trace
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FIRST, LAST, WIDTH = 10, 13, 256
RANK, PORTS, FOLDER, MODE = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], sys.argv[4]
CLUSTER = {"worker": [f"127.0.0.1:{port}" for port in PORTS]}
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": CLUSTER, "task": {"type": "worker", "index": RANK}}
)
os.environ |= {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"}

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()
marks: list[list[int]] = []


def data() -> Any:
    x = np.random.rand(1024, WIDTH).astype("float32")
    made = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return made.with_options(options)


def start() -> None:
    tf.profiler.experimental.start(FOLDER)


def stop() -> None:
    # A step returns before the thread of its last collective has noted that collective's end, and
    # what has no end when the profiler stops is not in the profile.
    time.sleep(1)
    tf.profiler.experimental.stop()


def fit(model: Any) -> None:
    class Window(tf_keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == FIRST:
                start()
            self.began = time.time_ns()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if FIRST <= batch <= LAST:
                marks.append([batch, self.began, time.time_ns()])
            if batch == LAST:
                stop()

    model.compile(tf_keras.optimizers.SGD(0.01), loss="mse")
    model.fit(data(), epochs=1, steps_per_epoch=LAST + 3, callbacks=[Window()], verbose=0)


def custom(model: Any, optimizer: Any) -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        def local(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("MEAN", strategy.run(local, args=(batch,)), axis=None)

    batches = iter(strategy.experimental_distribute_dataset(data()))
    for number in range(LAST + 3):
        if number == FIRST:
            start()
        began = time.time_ns()
        if MODE == "trace":
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                step(next(batches))
        else:
            step(next(batches))
        if FIRST <= number <= LAST:
            marks.append([number, began, time.time_ns()])
        if number == LAST:
            stop()


with strategy.scope():
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [layers.Dense(WIDTH, "relu", input_shape=(WIDTH,)), layers.Dense(WIDTH), layers.Dense(1)]
    )
    optimizer = tf_keras.optimizers.SGD(0.01)
if MODE == "fit":
    fit(model)
else:
    custom(model, optimizer)
Path(FOLDER, f"marks-{RANK}.json").write_text(json.dumps(marks))
# Whoever ends first would reset connections over which others still get their last values.
until = time.monotonic() + 60
while len(list(Path(FOLDER).parent.glob("*/marks-*.json"))) < len(PORTS):
    if time.monotonic() > until:
        raise SystemExit("the other workers did not end")
    time.sleep(0.05)
