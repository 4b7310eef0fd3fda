"""``fit`` under MultiWorkerMirroredStrategy, traced with one line.

    python examples/tensorflow_fit.py --workers 2 --slow input:1
    tracekit analyze runs/*

starts the workers on this machine, of which worker 1 has slow input. On a cluster each machine
sets TF_CONFIG itself and runs the script without ``--workers``. Keras 3 cannot ``fit`` with this
strategy; tf_keras can.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, help="start this many on this machine")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow", default="", help="input:RANK or compute:RANK")
    parser.add_argument("--kill", type=int, help="this worker kills itself in the middle")
    parser.add_argument("--untraced", action="store_true")
    parser.add_argument("--windows", action="store_true", help="take profiles, 4 steps in every 20")
    options = parser.parse_args()
    if options.workers:
        return start_workers(options.workers)
    train(options)
    return 0


def start_workers(count: int) -> int:
    """Start this script once for each worker; returns the worst exit code."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    arguments = [*sys.argv]
    at = arguments.index("--workers")
    del arguments[at : at + 2]
    workers = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        workers.append(subprocess.Popen([sys.executable, *arguments], env=environment))
    return max(abs(worker.wait()) for worker in workers)


def train(options: argparse.Namespace) -> None:
    import tensorflow as tf

    from tracekit.adapters.tensorflow import TracekitCallback

    rank = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    slow, _, whose = options.slow.partition(":")
    slow = slow if whose == str(rank) else ""
    tf.keras.utils.set_random_seed(0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [tf.keras.layers.Dense(64, activation="relu", input_shape=(16,))]
        layers += [slow_layer(tf)] if slow == "compute" else []
        model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    features = tf.random.stateless_uniform((1024, 16), (1, 2))
    data = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, 1, True)))
    data = data.shuffle(1024, seed=0).repeat().batch(16 * strategy.num_replicas_in_sync)
    if slow == "input":
        data = data.map(lambda *batch: slowly(tf, batch))
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    callbacks: list[Any] = []
    if not options.untraced:
        callbacks.append(TracekitCallback(windows=(20, 4) if options.windows else False))
    if options.kill == rank:
        callbacks.append(
            tf.keras.callbacks.LambdaCallback(
                on_batch_begin=lambda batch, logs: (
                    os.kill(os.getpid(), signal.SIGKILL) if batch == options.steps // 2 else None
                )
            )
        )
    model.fit(
        data.with_options(sharding),
        epochs=2,
        steps_per_epoch=options.steps,
        callbacks=callbacks,
        verbose=0,
    )
    print(f"worker {rank}: weights sum to {sum(float(w.sum()) for w in model.get_weights())!r}")


def slowly(tf: Any, batch: Any) -> Any:
    """The same batch, 20 ms later."""

    def wait(*values: Any) -> Any:
        time.sleep(0.02)
        return values

    late = tf.numpy_function(wait, batch, [one.dtype for one in batch])
    for one, before in zip(late, batch, strict=True):
        one.set_shape(before.shape)
    return tuple(late)


def slow_layer(tf: Any) -> Any:
    """A layer that computes 20 ms longer."""

    def compute(values: Any) -> Any:
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
        return values

    def call(values: Any) -> Any:
        late = tf.numpy_function(compute, [tf.stop_gradient(values)], tf.float32)
        late.set_shape(values.shape)
        return values + 0.0 * late

    return tf.keras.layers.Lambda(call)


if __name__ == "__main__":
    sys.exit(main())
