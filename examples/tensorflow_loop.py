"""A loop of one's own under MultiWorkerMirroredStrategy, traced.

    python examples/tensorflow_loop.py --workers 2 --slow compute:1
    tracekit analyze runs/*

starts the workers on this machine, of which worker 1 computes 40 ms longer in each step. On a
cluster each machine sets TF_CONFIG itself and runs the script without ``--workers``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, help="start this many on this machine")
    parser.add_argument("--missing", type=int, help="this one is not started")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow", default="", help="input:RANK or compute:RANK")
    parser.add_argument("--stuck", type=int, help="this worker sleeps in the middle for 60 s")
    options = parser.parse_args()
    if options.workers:
        return start_workers(options.workers, options.missing)
    train(options)
    return 0


def start_workers(count: int, missing: int | None) -> int:
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
        if index == missing:
            continue
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        workers.append(subprocess.Popen([sys.executable, *arguments], env=environment))
    return max(abs(worker.wait()) for worker in workers)


def train(options: argparse.Namespace) -> None:
    import tensorflow as tf

    import tracekit
    from tracekit.adapters.tensorflow import trace_dataset, trace_strategy

    rank = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    slow, _, whose = options.slow.partition(":")
    slow = slow if whose == str(rank) else ""
    tf.random.set_seed(0)
    # Given what makes a strategy, it shows who never joins.
    strategy = trace_strategy(tf.distribute.MultiWorkerMirroredStrategy).strategy

    def batches(context: Any) -> Any:
        features = tf.random.stateless_uniform((1024, 16), (1, 2))
        data = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, 1, True)))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        data = data.repeat().batch(16, drop_remainder=True).take(options.steps)
        return data.map(lambda *batch: after(tf, batch, rest)) if slow == "input" else data

    data = strategy.distribute_datasets_from_function(batches)
    trace_dataset(data)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(1)]
        )
        model.build((None, 16))
        optimizer = tf.keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def train_step(inputs: Any) -> Any:
        def replica_step(features: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                if slow == "compute":
                    features = after(tf, (features,), compute)[0]
                errors = tf.square(model(features, training=True) - targets)
                loss = tf.nn.compute_average_loss(tf.reduce_mean(errors, -1))
            gradients = tape.gradient(loss, model.trainable_variables)
            # Keras 3 leaves the reduction to the loop.
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        losses = strategy.run(replica_step, args=inputs)
        return strategy.reduce("SUM", losses, axis=None)

    compiled = tf.function(train_step)
    for epoch in range(2):
        for number, batch in enumerate(data):
            if options.stuck == rank and epoch and number == options.steps // 2:
                time.sleep(60)
            tracekit.event("loss", value=compiled(batch))
    print(f"worker {rank}: {sum(float(tf.reduce_sum(one)) for one in model.trainable_variables)!r}")


def rest() -> None:
    """What a slow disk does: a step hides of it as much as the step itself takes."""
    time.sleep(0.1)


def compute() -> None:
    """What a slow processor does."""
    end = time.perf_counter() + 0.04
    while time.perf_counter() < end:
        pass


def after(tf: Any, values: Any, does: Callable[[], None]) -> Any:
    """The same values, once this was done."""

    def call(*values: Any) -> Any:
        does()
        return values

    found = tf.numpy_function(call, values, [one.dtype for one in values])
    for one, before in zip(found, values, strict=True):
        one.set_shape(before.shape)
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
