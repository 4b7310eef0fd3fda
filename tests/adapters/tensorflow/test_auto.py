"""Scripts that know nothing of tracekit: what they make of TensorFlow is traced by itself."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras

from tests.adapters.tensorflow.small import FEATURES, TARGETS, fit, model_of, same
from tests.adapters.torch.tape import Tape, recording
from tracekit import recorder
from tracekit.adapters._patch import patched
from tracekit.adapters.tensorflow import TracekitCallback, _auto, trace_strategy
from tracekit.adapters.tensorflow._guard import failures

both = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras3", "tf_keras"])


@pytest.fixture
def tape() -> Iterator[Tape]:
    failures.clear()
    with recording() as tape:
        _auto.attach()
        yield tape
        recorder.tell_stopped()
    gc.collect()
    assert failures == {}
    assert patched() == []


def counted(tape: Tape) -> Counter[str]:
    return Counter(f"{span.kind} {span.name}" for span in tape.spans() if span.kind != "gc")


def numbers(batch: int = 16) -> Any:
    return tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).shuffle(7).batch(batch)


@both
def test_fit_is_traced_and_trains_the_same(library: Any, tape: Tape) -> None:
    model = model_of(library)
    traced = fit(model, [], epochs=2)
    model.evaluate(FEATURES, TARGETS, verbose=0)
    spans = counted(tape)
    assert spans["step train_step"] == 8
    assert spans["data data_wait"] >= 6  # TensorFlow traces a function twice
    assert spans["eval evaluate"] == 1
    recorder.tell_stopped()
    assert same(traced, fit(model_of(library), [], epochs=2))


@both
def test_the_callbacks_of_the_script_stay_as_they_were(library: Any, tape: Tape) -> None:
    seen: list[int] = []
    own = library.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    given = [own]
    fit(model_of(library), given, epochs=1)
    assert given == [own]
    model = model_of(library)
    model.fit(FEATURES, TARGETS, 16, 1, 0, own)  # one, by position
    ready = library.callbacks.CallbackList([own], model=model)
    fit(model, ready, epochs=1)
    assert own in ready.callbacks
    assert not [one for one in ready.callbacks if isinstance(one, TracekitCallback)]
    assert seen == [0, 1, 2, 3] * 3
    assert counted(tape)["step train_step"] == 12


def test_what_fit_cannot_take_is_said_by_keras(tape: Tape) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        model_of(keras).fit(FEATURES, TARGETS, epoch=3)


def test_a_callback_that_the_script_gives_itself_is_the_only_one(tape: Tape) -> None:
    fit(model_of(keras), [TracekitCallback()], epochs=1)
    assert counted(tape)["step train_step"] == 4
    assert counted(tape)["launch train_function"] == 3


def train(strategy: Any, epochs: int = 3) -> None:
    """A loop of one's own that looks at other data after each epoch."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)

    def replica_step(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features) - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch))
    look = tf.function(lambda features, targets: tf.square(model(features) - targets))
    data, other = numbers(), numbers(32)
    for _ in range(epochs):
        for batch in data:
            step(batch)
        for batch in other:
            look(*batch)


def test_a_loop_is_traced_with_what_it_trains_from_and_what_it_only_looks_at(tape: Tape) -> None:
    train(tf.distribute.get_strategy())
    spans = counted(tape)
    assert spans["step train_step"] in (11, 12)  # the first call is spent on tracing
    assert spans["data data_wait"] == 12
    assert spans["eval eval_wait"] == 6
    assert [one["batch"] for one in tape.fact("tf_dataset")] == [16]
    assert [one["elements"] for one in tape.fact("tf_epoch")] == [4, 4, 4]
    (told,) = tape.fact("strategy")
    assert (told["class"], told["devices"]) == ("_DefaultDistributionStrategy", ["/device:CPU:0"])


def test_a_strategy_is_told_when_it_is_made(tape: Tape) -> None:
    train(tf.distribute.OneDeviceStrategy("/CPU:0"), epochs=1)
    assert [told["class"] for told in tape.fact("strategy")] == ["OneDeviceStrategy"]


def test_a_script_that_asks_for_tracing_is_traced_by_its_own_word_alone(tape: Tape) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    handle = trace_strategy(strategy)
    train(strategy, epochs=2)
    handle.detach()
    spans = counted(tape)
    assert spans["step train_step"] in (7, 8)
    assert spans["data data_wait"] == 0  # trace_dataset() was not called
