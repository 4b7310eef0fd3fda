"""What tracing costs a TensorFlow training: an A/B of whole steps, outside of profiler windows.

One worker of MultiWorkerMirroredStrategy in a loop of its own, pinned to one core. Blocks of steps
with and without ``trace_strategy()`` and ``trace_dataset()`` take turns, the order in each pair by
chance. Each block has a function of its own, which TensorFlow traces in it, so a traced block also
runs the operations with which the graph asks the clock. A block is judged by the median of its
steps, and by the CPU time of the process, which no neighbour can steal; the interval is a
bootstrap's over the pairs.

A step of a millisecond shows what a step costs in microseconds, and so which part of one of 50 ms;
a step of tens of milliseconds shows the same as a change. One worker has nobody to wait for: with
more of them each collective is recorded as well, about a microsecond each.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from statistics import median
from time import perf_counter, process_time
from typing import Any

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before TensorFlow makes its threads
os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
os.environ.pop("TF_CONFIG", None)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import tracekit  # noqa: E402
from benchmarks.rows import Row, main  # noqa: E402
from benchmarks.turns import CLOCKS, changes, interval, take_turns  # noqa: E402
from tracekit.adapters.tensorflow import trace_dataset, trace_strategy  # noqa: E402

STEP_US = 50_000
WARM_UP = 10


class Training:
    """A model whose step takes about a millisecond, or some tens of them."""

    def __init__(self, strategy: Any, width: int, layers: int, batch: int, block: int) -> None:
        self.strategy, self.block_steps = strategy, block
        features = tf.random.stateless_uniform((batch, width), (1, 2))
        self.data = tf.data.Dataset.from_tensors((features, features)).repeat(WARM_UP + block)
        with strategy.scope():
            self.model = keras.Sequential([keras.layers.Dense(width) for _ in range(layers)])
            self.model.build((None, width))
            self.optimizer = keras.optimizers.SGD(1e-4)
            self.optimizer.build(self.model.trainable_variables)

    def function(self) -> Any:
        """A function that trains with a batch and was never traced."""
        model, optimizer = self.model, self.optimizer

        def local(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return tf.function(lambda batch: self.strategy.run(local, args=batch))

    def block(self, traced: bool) -> tuple[float, float]:
        """Median wall time and mean CPU time of a step, in milliseconds."""
        data = self.strategy.experimental_distribute_dataset(self.data)
        with contextlib.ExitStack() as stack:
            if traced:
                stack.callback(trace_strategy(self.strategy).detach)
                stack.callback(trace_dataset(data).detach)
            train = self.function()
            walls: list[float] = []
            cpu = begun = 0.0
            for number, batch in enumerate(data):
                train(batch)
                now = perf_counter()
                if number == WARM_UP - 1:
                    cpu = process_time()
                elif number >= WARM_UP:
                    walls.append(now - begun)
                begun = now
            cpu = (process_time() - cpu) / len(walls)
        return median(walls) * 1e3, cpu * 1e3


def benchmark(long: bool) -> Iterator[Row]:
    folder = tempfile.mkdtemp(prefix="tracekit-bench-")
    tracekit.start(run="bench", dir=folder, rank=0, world_size=1, agent=False)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    try:
        blocks = take_turns(Training(strategy, 8, 2, 8, 300).block, 40 if long else 12)
        for place, clock in enumerate(CLOCKS):
            step = median(pair[False][place] for pair in blocks)
            low, high = interval(
                [1e3 * (pair[True][place] - pair[False][place]) for pair in blocks]
            )
            bar = 0.005 * STEP_US
            yield Row(
                f"tracing a step of TensorFlow ({step:.1f} ms), {clock}",
                f"{low:.0f} to {high:.0f} us: {low / STEP_US:.2%} to {high / STEP_US:.2%}"
                f" of {STEP_US // 1000} ms",
                "<= 0.5 %",
                True if high <= bar else None if high - low > bar else False,
            )
        training = Training(strategy, 640, 6, 128, 50)
        blocks = take_turns(training.block, 80 if long else 10)
        yield from changes(blocks, training.block_steps, "TensorFlow")
    finally:
        tracekit.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(benchmark, __doc__)
