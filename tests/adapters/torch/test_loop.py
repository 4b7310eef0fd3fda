"""One process: phases, steps, loaders, optimizers, and what detach() puts back."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.adapters.torch.small import names, network, numbers, phases
from tests.adapters.torch.tape import Tape, recording
from tracekit import recorder
from tracekit.adapters._patch import patched
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._guard import failures
from tracekit.errors import UsageError


def test_a_step_has_its_phases_in_order(tape: Tape) -> None:
    model, loader = network(), numbers(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer=optimizer, loader=loader)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    handle.detach()
    before = [span.name for span in phases(tape) if span.step is None]
    assert before == ["data_wait", "data_wait"]  # iter() and the first batch: the start-up
    first = [span.name for span in phases(tape) if span.step == 0]
    assert first == ["forward", "backward", "optimizer_step"]
    second = [span.name for span in phases(tape) if span.step == 1]
    assert second == ["data_wait", "forward", "backward", "optimizer_step"]


def test_the_loader_stays_what_it_is(tape: Tape) -> None:
    loader = numbers(6)
    before = dict(vars(loader))
    handle = trace(network(), loader=loader)
    assert type(loader) is DataLoader
    assert dict(vars(loader)) == before
    assert len(loader) == 3
    assert [batch.shape for batch in loader] == [(2, 4)] * 3
    assert len(iter(loader)) == 3
    handle.detach()


def test_other_loaders_of_the_class_are_not_recorded(tape: Tape) -> None:
    mine, other = numbers(2), numbers(4)
    handle = trace(network(), loader=mine)
    assert len(list(other)) == 2
    assert names(tape) == []
    assert len(list(mine)) == 1
    assert names(tape) == ["data_wait"] * 3  # iter(), the batch, and finding the end
    handle.detach()


def test_an_iterator_under_way_goes_on_after_detach(tape: Tape) -> None:
    loader = numbers(6)
    handle = trace(network(), loader=loader)
    batches = iter(loader)
    next(batches)
    handle.detach()
    assert len(list(batches)) == 2
    assert names(tape) == ["data_wait"] * 2


def test_a_loader_that_cannot_be_watched_is_said(
    tape: Tape, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder._current, "_said", set())
    with caplog.at_level(logging.WARNING, "tracekit"):
        handle = trace(network(), loader=[torch.ones(4)])
    assert "the waits for a list cannot be seen" in caplog.text
    handle.detach()


def test_a_loader_read_on_another_thread_is_not_a_wait(tape: Tape) -> None:
    loader = numbers(4)
    handle = trace(network(), loader=loader)
    thread = threading.Thread(target=lambda: list(loader))
    thread.start()
    thread.join()
    assert names(tape) == []
    handle.detach()


def test_the_outermost_forward_is_recorded(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    inner = model[2]  # type: ignore[index]
    inner(torch.ones(8))
    assert names(tape) == []
    model(torch.ones(4))
    assert names(tape) == ["forward"]
    handle.detach()


def test_a_forward_without_gradients_is_evaluation(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    with torch.no_grad():
        model(torch.ones(4))
    assert [(span.name, span.kind) for span in tape.spans()] == [("forward", "eval")]
    handle.detach()


def test_every_way_to_call_backward_is_one_span(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    model(torch.ones(4)).sum().backward()
    torch.autograd.backward(model(torch.ones(4)).sum())
    torch.autograd.backward([model(torch.ones(4)).sum()], inputs=list(model.parameters()))
    assert Counter(names(tape)) == {"forward": 3, "backward": 3}
    handle.detach()


def test_accumulation_numbers_micro_steps(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    for _ in range(3):
        for _ in range(2):
            model(torch.ones(4)).sum().backward()
        optimizer.step()
    handle.detach()
    found = [(s.step, s.micro_step) for s in tape.spans() if s.name == "forward"]
    assert found == [(0, None), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_steps_of_the_user_win(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    for number in range(7, 9):
        with recorder.step(number):
            model(torch.ones(4)).sum().backward()
            optimizer.step()
    handle.detach()
    assert [span.step for span in tape.spans() if span.kind == "step"] == [7, 8]
    assert {span.step for span in phases(tape)} == {7, 8}


def test_steps_of_the_user_win_also_when_they_begin_after_the_batch(tape: Tape) -> None:
    model, loader = network(), numbers(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer, loader)
    for number, batch in enumerate(loader):
        with recorder.step(number):
            model(batch).sum().backward()
            optimizer.step()
    handle.detach()
    assert [span.step for span in tape.spans() if span.kind == "step"] == [0, 1, 2]


def test_steps_go_on_counting_after_a_second_trace(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        handle = trace(model, optimizer)
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        handle.detach()
    assert [span.step for span in phases(tape) if span.name == "forward"] == [0, 2]


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_learning_rate_schedulers_work(tape: Tape, scheduler_first: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if scheduler_first:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        handle = trace(model, optimizer)
    else:
        handle = trace(model, optimizer)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        scheduler.step()
    handle.detach()
    assert names(tape, "optimizer") == ["optimizer_step"] * 2
    optimizer.step()
    scheduler.step()
    assert names(tape, "optimizer") == ["optimizer_step"] * 2
    assert scheduler.get_last_lr() == [pytest.approx(1e-4)]


def test_a_closure_works(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    handle = trace(model, optimizer)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(4)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    handle.detach()
    assert names(tape, "optimizer", "forward", "backward") == 2 * [
        "forward",
        "backward",
        "optimizer_step",
    ]
    assert {span.parent for span in phases(tape)} == {
        s.id for s in tape.spans() if s.step == 0 and s.kind == "step"
    }


def test_what_a_closure_raises_passes_and_the_loop_goes_on(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)

    def fails() -> Any:
        model(torch.ones(4))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        optimizer.step(fails)
    optimizer.step(lambda: model(torch.ones(4)).sum())
    handle.detach()
    assert names(tape, "optimizer", "forward") == ["forward", "forward", "optimizer_step"]


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="PyTorch before 2.3")
def test_a_gradient_scaler_works(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    handle = trace(model, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(4)).sum()).backward()
    scaler.step(optimizer)
    handle.detach()
    assert names(tape, "optimizer") == ["optimizer_step"]


def test_an_optimizer_that_is_not_torchs(tape: Tape) -> None:
    class Mine:
        def step(self, scale: float) -> float:
            return scale * 2

    optimizer = Mine()
    handle = trace(network(), optimizer)
    assert optimizer.step(scale=2.0) == 4.0
    assert Mine().step(1.0) == 2.0
    handle.detach()
    assert names(tape, "optimizer") == ["optimizer_step"]
    assert "step" not in vars(optimizer)


def test_models_and_optimizers_can_be_copied_and_pickled(tape: Tape) -> None:
    model, loader = network(), numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer, loader)
    assert b"tracekit" not in pickle.dumps((model, optimizer, loader))
    twin = copy.deepcopy(model)
    twin(torch.ones(4)).sum().backward()
    copy.deepcopy(optimizer).step()
    assert names(tape, "forward", "optimizer") == []
    assert isinstance(pickle.loads(pickle.dumps(model)), nn.Sequential)
    handle.detach()


def test_saving_is_a_checkpoint(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    torch.save(model.state_dict(), io.BytesIO())
    handle.detach()
    assert [(s.name, s.kind) for s in tape.spans()] == [("torch.save", "checkpoint")]
    torch.save(model.state_dict(), io.BytesIO())
    assert len(tape.spans()) == 1


def test_a_full_collection_is_a_pause(tape: Tape) -> None:
    handle = trace(network())
    gc.collect()
    gc.collect(0)
    handle.detach()
    [pause] = [span for span in tape.spans() if span.attributes["generation"] == 2]
    assert (pause.name, pause.kind) == ("gc", "gc")
    assert "collected" in pause.attributes
    assert all(s.duration >= 1_000_000 for s in tape.spans() if s.attributes["generation"] < 2)


class Broken(nn.Module):
    """Fails in the phase that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.phase = ""

    def forward(self, x: Any) -> Any:
        if self.phase == "forward":
            raise KeyError("mine")
        result = self.layer(x)
        if self.phase == "backward":
            result.register_hook(self.fail)
        return result

    def fail(self, *_: Any) -> Any:
        raise KeyError("mine")


class BrokenLoader:
    def __init__(self, phase: str) -> None:
        self.phase = phase

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            if self.phase == "data":
                raise KeyError("mine")
            yield torch.ones(4)


class BrokenSGD(torch.optim.SGD):
    """Fails where its model says so."""

    def __init__(self, model: Broken) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.model = model

    def step(self, closure: Any = None) -> Any:
        if self.model.phase == "optimizer":
            raise KeyError("mine")
        return super().step(closure)


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_an_exception_reaches_the_user_unchanged(tape: Tape, phase: str) -> None:
    model, loader = Broken(), BrokenLoader(phase)
    model.phase = phase
    optimizer = BrokenSGD(model)
    handle = trace(model, optimizer, loader)

    def train() -> None:
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()

    with pytest.raises(KeyError) as caught:
        train()
    assert caught.value.args == ("mine",)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert [span.kind for span in tape.spans() if span.error] == [phase]
    assert tape.open_spans() == ([] if phase == "data" else ["train_step"])
    model.phase = loader.phase = ""
    train()
    assert names(tape, "optimizer") == ["optimizer_step"] * (4 if phase == "optimizer" else 3)
    handle.detach()


def test_everything_is_as_before_after_detach(tape: Tape) -> None:
    class Mine(nn.Sequential):
        pass

    model, loader = Mine(nn.Linear(4, 2)), numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places = [torch, torch.autograd, torch.Tensor, Mine, nn.Module, DataLoader, torch.optim.SGD]
    objects = [model, loader, optimizer]
    before = [dict(vars(place)) for place in (*places, *objects)]
    callbacks = list(gc.callbacks)
    handle = trace(model, optimizer, loader)
    assert [dict(vars(place)) for place in places] != before[: len(places)]
    handle.detach()
    assert [dict(vars(place)) for place in (*places, *objects)] == before
    assert gc.callbacks == callbacks
    handle.detach()


def test_two_handles_share_the_patches(tape: Tape) -> None:
    one, two = network(), network()
    first, second = trace(one), trace(two)
    first.detach()
    one(torch.ones(4))
    two(torch.ones(4)).sum().backward()
    second.detach()
    assert names(tape) == ["forward", "backward"]


def test_a_second_trace_of_a_model_adds_what_was_missing(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model)
    assert trace(model, optimizer) is handle
    assert trace(model, optimizer) is handle
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    handle.detach()
    assert Counter(names(tape)) == {
        "train_step": 2,
        "forward": 1,
        "backward": 1,
        "optimizer_step": 1,
    }


def test_a_model_that_dies_leaves_only_the_patches_of_others(tape: Tape) -> None:
    handle = trace(network())
    gc.collect()
    handle.detach()


def test_training_may_run_on_another_thread_than_trace(tape: Tape) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)

    def train() -> None:
        model(torch.ones(4)).sum().backward()
        optimizer.step()

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    thread.join()
    handle.detach()
    assert {span.lane for span in phases(tape)} == {"thread:trainer"}
    assert names(tape, "backward", "optimizer") == ["backward", "optimizer_step"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1],), "needs the torch.nn.Module that your loop calls, not a list"),
        ((nn.Linear,), "not the class Linear"),
        ((nn.Linear(1, 1), "sgd"), "optimizer= needs an object with a step() method, not a str"),
        ((nn.Linear(1, 1), None, 3), "loader= needs what your loop iterates over, not a int"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        trace(*arguments)
    assert message in str(caught.value)


def test_without_a_recorder_nothing_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder._current, "_starter", None)
    model = network()
    handle = trace(model, torch.optim.SGD(model.parameters(), lr=0.1), numbers())
    assert patched() == []
    model(torch.ones(4)).sum().backward()
    handle.detach()
    handle.detach()


def test_a_recorder_that_stops_first_is_no_harm() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as tape:
        handle = trace(model, optimizer)
        model(torch.ones(4)).sum().backward()
    optimizer.step()
    model(torch.ones(4)).sum().backward()
    with recording() as second:
        again = trace(model, optimizer)
        model(torch.ones(4)).sum().backward()
        again.detach()
    handle.detach()
    assert patched() == []
    assert names(tape) == ["train_step", "forward", "backward"]
    assert names(second) == ["train_step", "forward", "backward"]


def test_our_own_mistakes_are_counted_and_said_once(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = trace(model, optimizer)
    monkeypatch.setattr(recorder.Recorder, "begin_step", lambda self, step: 1 / 0)
    with caplog.at_level(logging.WARNING, "tracekit"):
        for _ in range(3):
            model(torch.ones(4)).sum().backward()
            optimizer.step()
    handle.detach()
    assert failures.pop("forward") >= 1
    assert failures.pop("optimizer step") >= 1
    assert caplog.text.count("optimizer step failed (ZeroDivisionError") <= 1
