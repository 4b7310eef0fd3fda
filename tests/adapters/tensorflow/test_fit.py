"""``fit`` of Keras 3 and of tf_keras in one process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import keras
import pytest
import tf_keras

from tests.adapters.tensorflow.small import FEATURES, TARGETS, fit, model_of, same
from tests.adapters.torch.tape import Tape
from tracekit.adapters._patch import patched
from tracekit.adapters.tensorflow import TracekitCallback, _phases
from tracekit.errors import UsageError

both = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras3", "tf_keras"])


@both
def test_weights_are_bit_equal_with_and_without(library: Any, tape: Tape) -> None:
    plain = fit(model_of(library), [])
    traced = fit(model_of(library), [TracekitCallback(check_gradients=True)])
    assert same(plain, traced)
    assert len([span for span in tape.spans() if span.name == "train_step"]) == 8


@both
def test_a_step_has_its_phases_in_order(library: Any, tape: Tape) -> None:
    fit(model_of(library), [TracekitCallback()])
    spans = [span for span in tape.spans() if span.step == 5 and span.kind != "gc"]
    assert [span.name for span in spans if span.kind not in ("step", "launch")] == [
        "data_wait", "forward", "backward_update",
    ]  # fmt: skip
    (step,) = [span for span in spans if span.kind == "step"]
    inner = [span for span in spans if span.kind in ("data", "forward", "backward")]
    assert all(step.start <= span.start <= span.end <= step.end for span in inner)
    assert inner == sorted(inner, key=lambda span: span.end)


@pytest.mark.parametrize("late_s", [0.0, 20e-6])
def test_a_batch_that_was_stamped_late_leaves_the_phases_in_order(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    read = _phases._Phases._read

    def reading(self: _phases._Phases) -> list[float]:
        raw = read(self)
        raw[_phases._DATA] = raw[_phases._LOSS] + late_s
        return raw

    monkeypatch.setattr(_phases._Phases, "_read", reading)
    fit(model_of(keras), [TracekitCallback()])
    for step in range(1, 8):
        spans = [span for span in tape.spans() if span.step == step]
        phases = [span for span in spans if span.kind in ("data", "forward", "backward")]
        assert [span.kind for span in phases] == ["data", "forward", "backward"]
        data, forward, backward = phases
        assert data.end == forward.start == forward.end == backward.start <= backward.end


@both
def test_evaluation_checkpoints_and_epochs_are_recorded(
    library: Any, tape: Tape, tmp_path: Path
) -> None:
    saves = library.callbacks.ModelCheckpoint(
        str(tmp_path / "saved.weights.h5"), save_weights_only=True
    )
    validation = {"validation_data": (FEATURES, TARGETS)}
    fit(model_of(library), [TracekitCallback(), saves], **validation)
    names = [span.name for span in tape.spans()]
    assert names.count("evaluate") == 2
    assert names.count("Model.save_weights") == 2
    assert [event.value for event in tape.events("epoch")] == [0.0, 1.0]
    assert [fact["elements"] for fact in tape.fact("tf_epoch")] == [4, 4]
    state = tape.fact("checkpoint_state")[0]
    assert state["variables"] >= 4
    assert state["step"] == 3


@both
def test_backup_and_restore_is_a_checkpoint(library: Any, tape: Tape, tmp_path: Path) -> None:
    backup = library.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    fit(model_of(library), [TracekitCallback(), backup], epochs=1)
    assert [span for span in tape.spans() if span.kind == "checkpoint"]


@both
def test_losses_and_rates_are_events(library: Any, tape: Tape) -> None:
    fit(model_of(library), [TracekitCallback()])
    losses = tape.events("loss")
    assert [event.step for event in losses] == list(range(8))
    assert all(event.attributes["mean_over"] == "epoch" for event in losses)
    assert [event.value for event in tape.events("lr")] == pytest.approx([0.05])


@both
def test_steps_per_execution_says_how_many_batches_a_step_covers(library: Any, tape: Tape) -> None:
    fit(model_of(library, steps_per_execution=2), [TracekitCallback()], epochs=1)
    assert [span.step for span in tape.spans() if span.name == "train_step"] == [0, 1]
    assert [event.attributes["batches"] for event in tape.events("loss")] == [2, 2]
    assert [fact["elements"] for fact in tape.fact("tf_epoch")] == [4]
    assert not [span for span in tape.spans() if span.kind in ("data", "forward")]


@both
def test_two_fits_count_their_steps_through(library: Any, tape: Tape) -> None:
    model = model_of(library)
    callback = TracekitCallback()
    fit(model, [callback], epochs=1)
    fit(model, [callback], epochs=1)
    assert [span.step for span in tape.spans() if span.name == "train_step"] == list(range(8))


def test_detach_in_the_middle_puts_everything_back(tape: Tape) -> None:
    callback = TracekitCallback()

    def detach(batch: int, logs: Any) -> None:
        if batch == 2:
            callback.detach()
            assert patched() == []

    fit(model_of(keras), [callback, keras.callbacks.LambdaCallback(on_train_batch_end=detach)])
    assert [span.step for span in tape.spans() if span.name == "train_step"] == [0, 1, 2]


def test_a_callback_is_a_callback_of_every_keras_that_is_loaded() -> None:
    callback = TracekitCallback()
    assert isinstance(callback, keras.callbacks.Callback)
    assert isinstance(callback, tf_keras.callbacks.Callback)
    assert isinstance(pickle.loads(pickle.dumps(callback)), TracekitCallback)


def test_an_exception_of_the_users_passes_and_the_next_fit_is_traced(tape: Tape) -> None:
    def fail(batch: int, logs: Any) -> None:
        raise RuntimeError("the user's own")

    callback = TracekitCallback()
    with pytest.raises(RuntimeError, match="the user's own"):
        fit(model_of(keras), [callback, keras.callbacks.LambdaCallback(on_train_batch_end=fail)])
    fit(model_of(keras), [callback], epochs=1)
    assert len([span for span in tape.spans() if span.name == "train_step"]) == 5


def test_windows_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(UsageError, match="windows="):
        TracekitCallback(windows=(4, 100))
