"""``tracekit run`` of real scripts of TensorFlow: as without it, and traced."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.adapters.tensorflow.running import addresses, processes, python, told, verdict_of
from tracekit.dataset import open_run

pytestmark = pytest.mark.slow

FIT = """
    import sys
    import numpy as np
    import tf_keras as keras
    features = np.random.RandomState(0).rand(64, 4).astype("float32")
    targets = features.sum(1, keepdims=True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    model.fit(features, targets, batch_size=16, epochs=3, verbose=0, validation_split=0.25)
    print(sys.argv, __name__, [repr(w) for w in model.get_weights()])
    sys.exit(3)
    """
LOOP = """
    import sys
    import tensorflow as tf
    import keras
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    features = tf.random.stateless_uniform((320, 4), (1, 2))
    data = tf.data.Dataset.from_tensor_slices((features, tf.reduce_sum(features, 1, True)))
    data = data.shard(2, strategy.cluster_resolver.task_id).batch(8)
    data = strategy.distribute_datasets_from_function(lambda context: data)

    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(features) - targets)) / 16
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    for epoch in range(2):
        for batch in data:
            loss = train(batch)
    print([repr(w) for w in model.get_weights()])
    """
FAILS = """
    import numpy as np
    import tensorflow as tf
    import tf_keras as keras

    class Odd(keras.layers.Layer):
        def call(self, x):
            return tf.matmul(x, tf.ones((3, 1)))

    model = keras.Sequential([keras.layers.Dense(4), Odd()])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 1), "float32"), verbose=0)
    """


def run(folder: Path, text: str, traced: bool, *words: str, **more: str) -> tuple[int, str, str]:
    """The exit code, and what a script prints and says."""
    script = folder / "script.py"
    script.write_text(dedent(text))
    command = python(script, *words)
    if traced:
        command[1:1] = ["-m", "tracekit", "run"]
    with processes([command], [more], folder) as (job,):
        out, errors = job.communicate(timeout=200)
        return job.returncode, out, errors


def traceback_in(text: str) -> list[str]:
    """The exception, without what TensorFlow says with times and addresses."""
    lines = re.sub(r"__autograph_generated_file\w+", "generated", text).splitlines()
    return lines[lines.index("Traceback (most recent call last):") :]


def counted(folder: Path, rank: int = 0) -> Counter[str]:
    with open_run(folder / "run") as opened:
        spans: list[dict[str, Any]] = opened.table("spans").to_pylist()
    mine = [one for one in spans if one["rank"] == rank and one["kind"] != "gc"]
    return Counter(f"{one['kind']} {one['name']}" for one in mine)


def test_fit_trains_the_same_ends_the_same_and_is_traced(tmp_path: Path) -> None:
    plain = run(tmp_path, FIT, False, "--lr", "1")
    traced = run(tmp_path, FIT, True, "--lr", "1")
    assert traced[:2] == plain[:2]
    assert (traced[0], "'--lr', '1'] __main__" in traced[1]) == (3, True)
    assert "tracekit" not in traced[2]
    spans = counted(tmp_path)
    assert spans["step train_step"] == 9
    assert spans["eval evaluate"] == 3
    assert spans["data data_wait"] >= 7  # TensorFlow traces a function twice


def test_a_loop_of_two_workers_trains_the_same_and_is_one_run(tmp_path: Path) -> None:
    found = {}
    script = tmp_path / "script.py"
    script.write_text(dedent(LOOP))
    for traced in (False, True):
        cluster = addresses(2)
        command = python(script)
        if traced:
            command[1:1] = ["-m", "tracekit", "run"]
        environments = [{"TF_CONFIG": told(cluster, index)} for index in range(2)]
        with processes([command, command], environments, tmp_path) as workers:
            found[traced] = [one.communicate(timeout=200)[0] for one in workers]
            assert [one.returncode for one in workers] == [0, 0]
    assert found[True] == found[False]
    assert found[True][0] == found[True][1]
    verdict = verdict_of(tmp_path / "run")
    assert verdict.text["run"]["ranks"] == [0, 1]
    assert verdict.text["run"]["steps"] >= 38
    assert [one for one in verdict.ids if one.startswith(("config.", "hang.", "crash."))] == []
    assert any(one["op"] == "all_reduce" and one["count"] >= 38 for one in verdict.text[
        "collectives"
    ])  # fmt: skip
    for rank in (0, 1):
        assert counted(tmp_path, rank)["data data_wait"] >= 38


def test_an_error_in_the_model_shows_no_frame_of_ours(tmp_path: Path) -> None:
    plain = run(tmp_path, FAILS, False)
    traced = run(tmp_path, FAILS, True)
    assert (plain[0], traced[0]) == (1, 1)
    assert traceback_in(traced[2]) == traceback_in(plain[2])
    (crash,) = [i for i in verdict_of(tmp_path / "run").ids if i.startswith("crash.")]
    assert crash == "crash.error"


def test_a_graph_of_the_scripts_own_stays_as_it_is(tmp_path: Path) -> None:
    """As in TensorFlow 1: everything that is made is part of one graph."""
    text = """
        import tensorflow.compat.v1 as tf
        tf.disable_eager_execution()
        weight = tf.get_variable("weight", initializer=1.0)
        update = tf.train.GradientDescentOptimizer(0.1).minimize(weight * weight)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(update)
            print(session.run(weight))
        print([one.name for one in tf.get_default_graph().get_operations()])
        """
    plain, traced = run(tmp_path, text, False), run(tmp_path, text, True)
    assert traced[:2] == plain[:2]
    assert plain[0] == 0


def test_a_script_without_tensorflow_does_not_load_it(tmp_path: Path) -> None:
    text = """
        import sys
        print([name for name in ("tensorflow", "keras", "numpy") if name in sys.modules])
        """
    assert run(tmp_path, text, True)[:2] == (0, "[]\n")
