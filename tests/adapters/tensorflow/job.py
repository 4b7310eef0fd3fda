"""One worker of a small MultiWorkerMirroredStrategy training.

python job.py RANK PORT,PORT… FOLDER fit|loop OPTIONS

``fit`` is tf_keras's, ``loop`` is one of one's own with Keras 3. The options are JSON: ``steps``;
``width`` of the model;
``slow``, "input" or "compute", and ``whose``; ``bits``: train without tracekit before, and compare
the weights; ``profile``: first and last step of a profile that the program takes itself;
``windows``: those of tracekit; ``end``: "kill", "stop" or "absent", of worker ``whose``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK, PORTS, FOLDER, MODE = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], sys.argv[4]
OPTIONS: dict[str, Any] = json.loads(sys.argv[5])
MINE = OPTIONS.get("whose") == RANK
SLOW = OPTIONS.get("slow") if MINE else None
END = OPTIONS.get("end") if MINE else None
STEPS, WIDTH = int(OPTIONS.get("steps", 48)), int(OPTIONS.get("width", 128))
INPUT_S, COMPUTE_S = 0.1, 0.04
"""A batch is prepared while the step before it runs: what a step takes of it does not show."""

if END == "absent":
    sys.exit()
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in PORTS]},
        "task": {"type": "worker", "index": RANK},
    }
)
os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
if MODE == "fit":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tracekit.adapters.tensorflow import (  # noqa: E402
    TracekitCallback,
    trace_dataset,
    trace_strategy,
)

keras: Any = tf.keras


def batches() -> Any:
    """The same batches each time; those of a slow worker come late."""
    x = np.random.RandomState(RANK).rand(1024, WIDTH).astype("float32")
    made = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(64, True)
    if SLOW == "input":
        made = made.map(lambda *batch: unchanged(batch, lambda: time.sleep(INPUT_S)))
    return made


def unchanged(values: Any, does: Callable[[], None]) -> Any:
    """The same values, once this was done."""

    def call(*values: Any) -> Any:
        does()
        return values

    found = tf.numpy_function(call, values, [one.dtype for one in values])
    for one, before in zip(found, values, strict=True):
        one.set_shape(before.shape)
    return tuple(found)


def burn() -> None:
    end = time.perf_counter() + COMPUTE_S
    while time.perf_counter() < end:
        pass


def layers() -> list[Any]:
    made = [keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(1, dtype="float32")]
    if SLOW == "compute":

        def late(values: Any) -> Any:
            return values + 0 * unchanged((tf.stop_gradient(values),), burn)[0]

        made.insert(1, keras.layers.Lambda(late, output_shape=(WIDTH,)))
    return made


def at_step(number: int) -> None:
    """What happens before a step of the traced training."""
    if number == STEPS // 2 and END == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == STEPS // 2 and END == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    first, last = OPTIONS.get("profile", (-9, -9))
    if number == first:
        tf.profiler.experimental.start(str(Path(FOLDER, f"profile-{RANK}")))
    elif number == last + 2:  # a step later, so that the last one is whole
        tf.profiler.experimental.stop()


class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        at_step(batch)


def fit(strategy: Any, traced: bool, steps: int) -> list[Any]:
    with strategy.scope():
        model = keras.Sequential(layers())
        model.build((None, WIDTH))
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
    callbacks = [TracekitCallback(windows=OPTIONS.get("windows", False)), Hooks()]
    given = callbacks if traced else []
    data = strategy.distribute_datasets_from_function(lambda context: batches())
    model.fit(data, epochs=1, steps_per_epoch=steps, callbacks=given, verbose=0)
    weights: list[Any] = model.get_weights()
    return weights


def loop(strategy: Any, traced: bool, steps: int) -> list[Any]:
    data = strategy.distribute_datasets_from_function(lambda context: batches().take(steps))
    with contextlib.ExitStack() as stack:
        if traced:
            windows = OPTIONS.get("windows", False)
            stack.callback(trace_strategy(strategy, windows=windows).detach)
            stack.callback(trace_dataset(data).detach)
        with strategy.scope():
            model = keras.Sequential(layers())
            model.build((None, WIDTH))
            optimizer = keras.optimizers.SGD(0.01)
            optimizer.build(model.trainable_variables)

        @tf.function  # type: ignore[untyped-decorator]
        def train(batch: Any) -> Any:
            def local(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    errors = tf.square(model(x, training=True) - y)
                    loss = tf.nn.compute_average_loss(tf.reduce_mean(errors, -1))
                gradients = tape.gradient(loss, model.trainable_variables)
                # Keras 3 leaves the reduction to the loop.
                gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss

            return strategy.reduce("SUM", strategy.run(local, args=batch), axis=None)

        for number, batch in enumerate(data):
            if traced:
                at_step(number)
            train(batch)
        return [np.array(one) for one in model.trainable_variables]


def main() -> None:
    made = trace_strategy(tf.distribute.MultiWorkerMirroredStrategy)
    made.detach()  # who never comes is seen; the training is traced or not
    train = fit if MODE == "fit" else loop
    told: dict[str, Any] = {"equal": {}}
    policies = ["mixed_float16", "float32"] if MODE == "fit" else ["float32"]
    for policy in policies if OPTIONS.get("bits") else ["float32"]:
        steps = STEPS if policy == "float32" else 8
        keras.mixed_precision.set_global_policy(policy)
        weights = []
        for traced in (False, True) if OPTIONS.get("bits") else (True,):
            keras.utils.set_random_seed(0)
            weights.append(train(made.strategy, traced, steps))
        told["equal"][policy] = all(
            np.array_equal(a, b) for a, b in zip(weights[0], weights[-1], strict=True)
        )
        told["weights"] = [float(one.sum()) for one in weights[-1]]
    Path(FOLDER, f"told-{RANK}.json").write_text(json.dumps(told))
    # Whoever ends first would reset connections over which others still get their last values.
    until = time.monotonic() + 60
    while len(list(Path(FOLDER).glob("told-*.json"))) < len(PORTS) and time.monotonic() < until:
        time.sleep(0.05)


main()
