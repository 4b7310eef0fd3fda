"""Scripts that know nothing of tracekit: what they make of PyTorch is traced by itself."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import tracekit
from tests.adapters.torch.small import network, numbers
from tests.adapters.torch.tape import Tape, recording
from tracekit import recorder
from tracekit.adapters._patch import patched
from tracekit.adapters.torch import _auto, _optimizer, trace
from tracekit.adapters.torch._facts import identity as _identity
from tracekit.adapters.torch._guard import failures

ROOT = Path(__file__).parents[3]
TUTORIAL = Path(__file__).with_name("tutorial.py")
HERE = ("gc", "step")


@pytest.fixture
def tape() -> Iterator[Tape]:
    gc.collect()  # models of other tests are gone
    with recording() as tape:
        _auto.attach()
        yield tape
        recorder.tell_stopped()
    assert failures == {}
    assert patched() == []


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(*models: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]) -> None:
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def counts(tape: Tape) -> Counter[str]:
    """How often each phase was recorded, by kind and name."""
    return Counter(f"{s.kind} {s.name}" for s in tape.spans() if s.kind not in HERE)


# What is traced


def test_a_model_is_traced_from_its_optimizer_on(tape: Tape) -> None:
    model, loader = network(), numbers()
    model(torch.ones(1, 4)).sum().backward()
    assert counts(tape) == {}
    train(model, sgd(model), loader)
    assert counts(tape) == {
        "data data_wait": 5,  # the batches, their end, and what begins them
        "forward forward": 3,
        "backward backward": 3,
        "optimizer optimizer_step": 3,
    }
    assert [span.step for span in tape.spans() if span.name == "forward"] == [0, 1, 2]


def test_nothing_is_traced_where_nothing_trains(tape: Tape) -> None:
    model = network()
    for batch in numbers():
        model(batch)
    torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    assert counts(tape) == {}


def test_models_that_share_an_optimizer_are_all_traced(tape: Tape) -> None:
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = sgd(encoder, decoder)
    for batch in numbers():
        decoder(encoder(batch)).sum().backward()
        optimizer.step()
    assert counts(tape)["forward forward"] == 6
    assert {s.micro_step for s in tape.spans()} == {None}


def test_ddp_made_after_the_optimizer_takes_the_place_of_its_model(tape: Tape, group: None) -> None:
    model = network()
    optimizer = sgd(model)
    train(DistributedDataParallel(model), optimizer, numbers())
    found = counts(tape)
    assert found["forward forward"] == found["comm all_reduce"] == 3
    assert found["optimizer optimizer_step"] == 3
    assert [s.step for s in tape.spans() if s.op == "all_reduce"] == [0, 1, 2]


def test_ddp_is_traced_before_it_has_an_optimizer(tape: Tape, group: None) -> None:
    ddp = DistributedDataParallel(network())
    ddp(torch.ones(1, 4)).sum().backward()
    assert counts(tape)["comm all_reduce"] == 1
    train(ddp, sgd(ddp), numbers())
    assert counts(tape)["comm all_reduce"] == 4


def test_fully_sharded_models_are_traced(tape: Tape, group: None) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    mesh = torch.distributed.init_device_mesh("cpu", (1,))  # type: ignore[attr-defined]
    for part in model:
        fsdp.fully_shard(part, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    train(model, sgd(model), numbers())
    found = counts(tape)
    assert found["forward forward"] == found["backward backward"] == 3
    assert found["optimizer optimizer_step"] == 3


@pytest.mark.filterwarnings("ignore")  # it says that it has one rank only, and that it is old
def test_models_of_the_first_fsdp_are_traced(tape: Tape, group: None) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp").FullyShardedDataParallel
    inner = fsdp(nn.Linear(4, 8), device_id=torch.device("cpu"))
    model = fsdp(nn.Sequential(inner, nn.Linear(8, 2)), device_id=torch.device("cpu"))
    train(model, sgd(model), numbers())
    found = counts(tape)
    assert found["forward forward"] == found["backward backward"] == 3
    assert found["optimizer optimizer_step"] == 3


class Wrapper(nn.Module):
    """What a loop calls instead of the model that its optimizer was made of."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner.forward(x)
        return result


def test_a_model_that_is_wrapped_later_is_found_at_the_first_update(tape: Tape) -> None:
    model = network()
    optimizer = sgd(model)
    train(Wrapper(model), optimizer, numbers())
    found = counts(tape)
    assert (found["forward forward"], found["optimizer optimizer_step"]) == (2, 3)


class Program(nn.Module):
    """Is never called itself, as a LightningModule is not; one of its modules is."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([network()])

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.parts[0](batch).sum()
        return result


def test_a_model_inside_of_what_is_never_called_is_found_at_the_first_update(tape: Tape) -> None:
    program = Program()
    optimizer = sgd(program)
    for batch in numbers():
        program.training_step(batch).backward()
        optimizer.step()
    found = counts(tape)
    assert (found["forward forward"], found["optimizer optimizer_step"]) == (2, 3)


def test_a_compiled_model_is_the_one_that_is_traced(tape: Tape) -> None:
    model = network()
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="eager")
    train(compiled, optimizer, numbers())  # type: ignore[arg-type]
    assert counts(tape)["forward forward"] >= 2


def test_an_optimizer_in_place_of_one_that_is_gone_ends_steps(tape: Tape) -> None:
    model = network()
    for _ in range(3):
        optimizer = sgd(model)  # made while the one before it still lives
        train(model, optimizer, numbers())
    steps = [span.step for span in tape.spans() if span.name == "optimizer_step"]
    assert steps == list(range(9))


def test_an_optimizer_in_place_of_one_that_is_not_used_ends_steps(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_optimizer, "MOST_IDLE", 2)
    model = network()
    first, second = sgd(model), sgd(model)
    train(model, first, numbers())
    train(model, second, numbers())
    train(model, second, numbers())
    steps = [span.step for span in tape.spans() if span.name == "optimizer_step"]
    assert steps == [0, 1, 2, 3, 3, 3, 4, 5, 6]


def test_models_and_loaders_that_are_gone_leave_nothing(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_auto, "SEARCH_NS", 1 << 62)  # other tests may have filled the heap
    for _ in range(3):
        model = network()
        train(model, sgd(model), numbers())
    gc.collect()
    before = patched()
    for _ in range(30):
        model = network()
        train(model, sgd(model), numbers())
    gc.collect()
    assert set(patched()) <= set(before)  # of earlier tests something may only now be gone
    assert counts(tape)["optimizer optimizer_step"] == 99


class Same(DataLoader[Any]):
    pass


class Ahead(DataLoader[Any]):
    """Fetches a batch ahead, as Accelerate does."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch


@pytest.mark.parametrize("kind", [Same, Ahead])
def test_loaders_of_other_classes_count_their_batches_once(
    tape: Tape, kind: type[DataLoader[Any]]
) -> None:
    model = network()
    optimizer = sgd(model)
    loader = kind([torch.ones(4)] * 12, batch_size=2)  # type: ignore[arg-type]
    for _ in range(2):
        train(model, optimizer, loader)
    assert counts(tape)["data data_wait"] == 2 * (1 + 6 + 1)
    assert tape.fact("batch_size") == [2]


def test_a_training_without_a_process_group_is_alone_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_identity, "ALONE_AFTER", 2)
    session = tracekit.start(run="alone", dir=str(tmp_path), agent=False)
    assert session is not None
    _auto.attach()
    model = network()
    optimizer = sgd(model)
    assert session.identity.assumed
    train(model, optimizer, numbers())
    assert not session.identity.assumed
    assert (session.identity.rank, session.identity.world_size) == (0, 1)
    tracekit.stop()
    assert patched() == []


# Evaluation


def test_waits_of_an_evaluation_are_not_waits_of_the_training(tape: Tape) -> None:
    model, training, test = network(), numbers(), numbers(4)
    optimizer = sgd(model)
    for _ in range(2):
        train(model, optimizer, training)
        with torch.no_grad():
            for batch in test:
                model(batch)
    found = counts(tape)
    assert found["data data_wait"] == 2 * 5
    assert found["eval data_wait"] == 2 * 4
    assert found["eval forward"] == 2 * 2


def test_evaluation_mode_tells_an_evaluation_where_gradients_are_on(tape: Tape) -> None:
    model, training, test = network(), numbers(), numbers(4)
    train(model, sgd(model), training)
    model.eval()
    for batch in test:
        with torch.no_grad():
            model(batch)
    found = counts(tape)
    assert (found["data data_wait"], found["eval data_wait"]) == (5, 4)


def test_a_model_in_evaluation_mode_that_learns_is_trained(tape: Tape) -> None:
    model, loader = network().eval(), numbers()
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer, loader)
    found = counts(tape)
    assert (found["eval data_wait"], found["data data_wait"]) == (2, 3 + 5 + 5)


def test_the_loader_of_the_training_may_also_be_evaluated_on(tape: Tape) -> None:
    model, loader = network(), numbers()
    train(model, sgd(model), loader)
    with torch.no_grad():
        for batch in loader:
            model(batch)
    assert counts(tape)["eval data_wait"] == 5


# Whose word counts


def test_a_script_that_calls_trace_is_traced_by_that_only(tape: Tape) -> None:
    model, other, loader = network(), network(), numbers()
    optimizer, second = sgd(model), sgd(other)
    handle = trace(model, optimizer=optimizer, loader=loader)
    train(model, optimizer, loader)
    train(other, second, numbers())
    found = counts(tape)
    assert found["forward forward"] == found["optimizer optimizer_step"] == 3
    assert found["data data_wait"] == 5
    handle.detach()
    assert patched() == []


def test_the_script_may_ask_for_the_buckets_of_what_is_traced_already(
    tape: Tape, group: None
) -> None:
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    handle = trace(ddp, optimizer=optimizer, buckets=True)
    train(ddp, optimizer, numbers())
    lanes = {span.lane.split(":")[0] for span in tape.spans() if span.op == "all_reduce"}
    assert lanes == {"group"}
    handle.detach()


def test_everything_is_put_back_when_recording_stops(tape: Tape) -> None:
    model = network()
    optimizer = sgd(model)
    before = counts(tape)
    assert "DataLoader.__iter__" in patched()
    recorder.tell_stopped()
    assert patched() == []
    train(model, optimizer, numbers())
    assert counts(tape) == before
