"""Scripts that know nothing of tracekit: what they make of PyTorch is traced by itself."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
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
from tests.adapters.torch.tape import Tape, recording
from tracekit import recorder
from tracekit.adapters.torch import _auto, _identity, _optimizer, trace
from tracekit.adapters.torch._guard import failures
from tracekit.adapters.torch._patch import patched
from tracekit.dataset import open_run

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


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))


def numbers(count: int = 6) -> DataLoader[Any]:
    return DataLoader([torch.ones(4) * i for i in range(count)], batch_size=2)  # type: ignore[arg-type]


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


def test_models_and_loaders_that_are_gone_leave_nothing(tape: Tape) -> None:
    for _ in range(3):
        model = network()
        train(model, sgd(model), numbers())
    before = len(patched())
    for _ in range(30):
        model = network()
        train(model, sgd(model), numbers())
    assert len(patched()) == before
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


# Real processes


def launch(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRACEKIT_")}
    environment |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, **environ},
        capture_output=True,
        text=True,
        timeout=280,
    )


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    launcher += ["--local-addr", "127.0.0.1"]
    return launch(folder, *launcher, *arguments)


def the_run(folder: Path) -> Path:
    (run,) = [path for path in (folder / "runs").iterdir() if not path.name.startswith(".")]
    return run


def spans_of(folder: Path) -> list[dict[str, Any]]:
    with open_run(the_run(folder)) as run:
        return list(run.table("spans").to_pylist())


def counted(spans: list[dict[str, Any]], rank: int) -> Counter[str]:
    mine = [span for span in spans if span["rank"] == rank and span["kind"] not in HERE]
    return Counter(f"{span['kind']} {span['name']}" for span in mine)


@pytest.mark.slow
def test_the_tutorial_under_torchrun_is_traced_unchanged_and_trains_the_same(
    tmp_path: Path,
) -> None:
    """Two epochs of four batches; loader workers are forked; rank 0 saves twice."""
    arguments = ["2", "1", "--workers", "1", "--method", "fork", "--snapshot"]
    plain = torchrun(tmp_path, str(TUTORIAL), *arguments, "plain.pt")
    assert plain.returncode == 0, plain.stderr
    done = torchrun(tmp_path, "-m", "tracekit", "run", str(TUTORIAL), *arguments, "traced.pt")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.replace("traced.pt", "plain.pt").split()) == sorted(
        plain.stdout.split()
    )
    expected = torch.load(tmp_path / "plain.pt", weights_only=True)["MODEL_STATE"]
    found = torch.load(tmp_path / "traced.pt", weights_only=True)["MODEL_STATE"]
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    spans = spans_of(tmp_path)
    for rank in (0, 1):
        of_rank = counted(spans, rank)
        assert of_rank.pop("data data_wait") >= 2 * 6  # the tutorial peeks at a batch, too
        assert of_rank.pop("eval data_wait") == 2 * 4
        assert of_rank.pop("checkpoint torch.save", 0) == (2 if rank == 0 else 0)
        assert of_rank == {
            "forward forward": 8,
            "comm broadcast": 8,
            "backward backward": 8,
            "comm all_reduce": 8,
            "optimizer optimizer_step": 8,
        }
    steps = sorted((s["rank"], s["step"]) for s in spans if s["name"] == "all_reduce")
    assert steps == [(rank, step) for rank in (0, 1) for step in range(8)]
    assert len(list((the_run(tmp_path) / "attempt-000" / "ranks").glob("*[0-9].json"))) == 2


@pytest.mark.slow
def test_an_error_in_the_forward_shows_no_frame_of_ours(tmp_path: Path) -> None:
    """One rank without a launcher; its loader's workers are spawned."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    alone["MASTER_PORT"] = str(store.port)
    del store
    command = [str(TUTORIAL), "1", "1", "--workers", "1", "--method", "spawn", "--fail"]
    plain = launch(tmp_path, *command, **alone)
    done = launch(tmp_path, "-m", "tracekit", "run", *command, **alone)
    assert (plain.returncode, done.returncode) == (1, 1)
    assert "mat1 and mat2" in done.stderr
    assert traceback_in(done.stderr) == traceback_in(plain.stderr)
    assert counted(spans_of(tmp_path), 0)["forward forward"] == 9
    assert len(list((the_run(tmp_path) / "attempt-000" / "ranks").glob("*[0-9].json"))) == 1


def traceback_in(text: str) -> str:
    """The exception as PyTorch's own hook shows it; not the warnings of gloo with their times."""
    lines = [line for line in text.splitlines() if line.startswith("[rank0]:")]
    assert "Traceback" in lines[0]
    return "\n".join(lines)


@pytest.mark.slow
def test_the_tutorial_explains_itself(tmp_path: Path) -> None:
    done = launch(tmp_path, "-m", "tracekit", "run", str(TUTORIAL), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: tutorial.py")


SPAWNS = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def main(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(main, args=(sys.argv[1],), nprocs=2, start_method=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ranks_that_the_script_starts_itself_are_one_run(tmp_path: Path, start: str) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    port = str(store.port)
    del store
    done = launch(tmp_path, "-m", "tracekit", "run", "spawns.py", port, start)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with open_run(the_run(tmp_path)) as run:
        assert run.ranks == (0, 1)
        spans = run.table("spans").to_pylist()
        ends = [f for f in run.table("facts").to_pylist() if f["name"] == "end_state"]
    found = sorted((s["rank"], s["step"]) for s in spans if s["name"] == "all_reduce")
    assert found == [(rank, step) for rank in (0, 1) for step in range(3)]
    assert all('"clean"' in end["value"] for end in ends), ends
