"""Loops of one's own in one process: where their steps are, what a value of replicas is."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import tracekit
from tests.adapters.tensorflow.small import FEATURES, TARGETS
from tests.adapters.torch.tape import Tape
from tracekit.adapters._patch import patched
from tracekit.adapters.tensorflow import trace_dataset, trace_strategy
from tracekit.errors import UsageError


def numbers() -> Any:
    return tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).shuffle(7).batch(16)


def trainer(strategy: Any, compiled: bool = True, mean: bool = False) -> Any:
    """A function that trains with a batch."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.build((None, 4))
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def replica_step(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(model(features) - targets), -1)
            loss = tf.reduce_mean(errors) if mean else tf.nn.compute_average_loss(errors)
        gradients = tape.gradient(loss, model.trainable_variables)
        if tf.reduce_sum(loss) > 0:  # AutoGraph has to see this in a graph
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def train(batch: Any) -> Any:
        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce("SUM", losses, axis=None)

    return tf.function(train) if compiled else train


@pytest.mark.parametrize("compiled", [True, False])
def test_the_call_that_applies_gradients_is_a_step(tape: Tape, compiled: bool) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    handle, data = trace_strategy(strategy), numbers()
    reader = trace_dataset(data)
    train = trainer(strategy, compiled)
    other = tf.function(lambda x: x + 1)
    for batch in data:
        other(tf.constant(1))
        train(batch)
    reader.detach()
    handle.detach()
    steps = [span.step for span in tape.spans() if span.name == "train_step"]
    assert steps == list(range(len(steps)))
    assert len(steps) in (4, 3)
    waits = [span for span in tape.spans() if span.kind == "data" and span.name == "data_wait"]
    assert len(waits) >= 4
    assert patched() == []


def test_the_users_own_steps_win(tape: Tape) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    handle, train = trace_strategy(strategy), trainer(strategy)
    for number, batch in enumerate(numbers()):
        with tracekit.step(10 + number):
            train(batch)
    handle.detach()
    assert [s.step for s in tape.spans() if s.name == "train_step" and s.kind == "step"] == [
        10, 11, 12, 13,
    ]  # fmt: skip


def test_a_mean_of_each_replica_that_is_summed_is_told(tape: Tape) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    handle = trace_strategy(strategy)
    for mean in (True, False):
        train = trainer(strategy, mean=mean)
        train(next(iter(numbers())))
    handle.detach()
    told = [(fact["reduced"], fact["mean"]) for fact in tape.fact("reduction")]
    assert told == [("SUM", True), ("SUM", False)]


def test_a_dataset_tells_what_it_is(tape: Tape) -> None:
    data = numbers()
    handle = trace_dataset(data)
    for _ in range(2):
        for _ in data:
            pass
    handle.detach()
    (fact,) = tape.fact("tf_dataset")
    assert (fact["cardinality"], fact["shuffle_buffer"], fact["batch"]) == (4, 7, 16)
    assert [one["elements"] for one in tape.fact("tf_epoch")] == [4, 4]


def test_a_value_of_several_replicas_is_their_mean_with_all_of_them(tape: Tape) -> None:
    from tensorflow.python.distribute.values import PerReplica

    tracekit.event("loss", value=PerReplica((tf.constant(1.0), tf.constant(3.0))))
    tracekit.event("loss", value=tf.constant(5.0))
    assert [event.value for event in tape.events("loss")] == [2.0, 5.0]


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a strategy"):
        trace_strategy(3)
    with pytest.raises(UsageError, match="needs a dataset"):
        trace_dataset([1, 2])
