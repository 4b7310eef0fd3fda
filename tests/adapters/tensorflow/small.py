"""A small model of either Keras, and how it is trained."""

from __future__ import annotations

from typing import Any

import numpy as np

FEATURES = np.random.RandomState(0).rand(64, 4).astype("float32")
TARGETS = FEATURES.sum(1, keepdims=True)


def model_of(keras: Any, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.build((None, 4))
    optimizer = compiled.pop("optimizer", None) or keras.optimizers.SGD(0.05)
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    return model


def fit(model: Any, callbacks: list[Any], **options: Any) -> Any:
    given = {"epochs": 2, "batch_size": 16, "verbose": 0, "shuffle": False, **options}
    model.fit(FEATURES, TARGETS, callbacks=callbacks, **given)
    return model.get_weights()


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
