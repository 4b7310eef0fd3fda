"""Windows of TensorFlow's profiler, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.adapters.tensorflow.small import fit, model_of
from tests.adapters.torch.tape import Tape
from tracekit import recorder
from tracekit.adapters.tensorflow import TracekitCallback
from tracekit.recorder import Home


@pytest.fixture
def home(tape: Tape, tmp_path: Path) -> Path:
    current = recorder.current()
    assert current is not None
    current.home = Home(tmp_path, "rank-00000.00000000-1", 1000)
    return tmp_path / "xplane" / "rank-00000.00000000-1"


def test_a_window_holds_whole_steps_and_says_which(home: Path, tape: Tape) -> None:
    fit(model_of(keras), [TracekitCallback(windows=(8, 3))], epochs=5)
    written = sorted(home.glob("*/window.json"))
    assert [path.parent.name for path in written] == ["window-00000007", "window-00000015"]
    told = json.loads(written[0].read_text())
    assert [step[0] for step in told["steps"]] == [7, 8, 9]
    assert all(told["start_ns"] <= a < b <= told["end_ns"] for _, a, b in told["steps"])
    assert len(list(written[0].parent.glob("plugins/profile/*/*.xplane.pb"))) == 1
    assert [event.attributes["first_step"] for event in tape.events("profile_window")] == [7, 15]


def test_where_the_user_profiles_a_window_is_left_out(home: Path, tape: Tape) -> None:
    tf.profiler.experimental.start(str(home.parent / "users"))
    fit(model_of(keras), [TracekitCallback(windows=(8, 3))], epochs=3)
    tf.profiler.experimental.stop()
    assert not home.exists()
    assert [event.attributes["first_step"] for event in tape.events("profile_window_skipped")] == [
        7
    ]


def test_a_window_gives_way_to_the_users_profiler(home: Path, tape: Tape) -> None:
    def begin(batch: int, logs: Any) -> None:
        if batch == 1 and not started:
            started.append(True)
            tf.profiler.experimental.start(str(home.parent / "users"))

    started: list[bool] = []
    later = keras.callbacks.LambdaCallback(on_train_batch_end=begin)
    fit(model_of(keras), [TracekitCallback(windows=(3, 2))], epochs=1)
    fit(model_of(keras), [TracekitCallback(windows=(5, 3)), later], epochs=2)
    tf.profiler.experimental.stop()
    assert started
    assert tape.events("profile_window_skipped")


def test_there_are_none_by_default(home: Path, tape: Tape) -> None:
    fit(model_of(keras), [TracekitCallback()], epochs=5)
    assert not home.exists()
