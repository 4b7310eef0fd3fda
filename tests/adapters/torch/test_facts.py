"""What is recorded once: versions, device, model, seeds, weights, loader, optimizer, DDP."""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from tests.adapters.torch.jobs import launch
from tests.adapters.torch.tape import Tape, recording
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._facts import run as _facts
from tracekit.adapters.torch._facts.checksum import checksum
from tracekit.adapters.torch._guard import failures


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def one(tape: Tape, name: str) -> Any:
    [value] = tape.fact(name)
    return value


def test_versions_and_device_are_told_without_loading_anything(tape: Tape) -> None:
    before = set(sys.modules)
    trace(network()).detach()
    assert set(sys.modules) - before == set()
    versions = one(tape, "versions")
    assert versions["torch"] == torch.__version__
    assert versions.get("cuda") == torch.version.cuda
    assert all(isinstance(version, str) for version in versions.values())
    device = one(tape, "device")
    assert device["device"] == "cpu"
    assert device["threads"] == torch.get_num_threads()
    assert not torch.cuda.is_initialized()


def test_the_process_is_described_once_however_many_models_it_trains(tape: Tape) -> None:
    first, second = trace(network()), trace(network())
    first.detach()
    second.detach()
    assert len(tape.fact("versions")) == len(tape.fact("seeds")) == 1
    assert len(tape.fact("model")) == len(tape.fact("initial_parameters")) == 2


def test_the_driver_is_read_from_where_the_kernel_says_it(
    tape: Tape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n")
    monkeypatch.setattr(_facts, "_DRIVERS", (str(tmp_path / "none"), str(version)))
    trace(network()).detach()
    assert one(tape, "versions")["driver"] == "550.54.15"


def test_bytes_of_parameters_gradients_and_buffers(tape: Tape) -> None:
    model = network()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    trace(model).detach()
    facts = one(tape, "model")
    assert facts["class"] == "Sequential"
    assert facts["parameters"] == 32 + 8 + 8 + 8 + 16 + 2
    assert facts["parameter_bytes"] == facts["parameters"] * 4
    assert facts["gradient_bytes"] == (facts["parameters"] - 32) * 4
    assert facts["buffer_bytes"] == (8 + 8) * 4 + 8
    assert facts["dtypes"] == ["float32"]


def test_seeds_tell_ranks_with_the_same_numbers_from_others(tape: Tape) -> None:
    pytest.importorskip("numpy").random.seed(3)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        random.seed(seed)
        with recording() as other:
            trace(nn.Identity()).detach()
            found.append(one(other, "seeds"))
    assert found[0] == found[1]
    assert found[0]["torch"] == 3
    assert found[2]["torch_state"] != found[0]["torch_state"]
    assert found[2]["random_state"] != found[0]["random_state"]
    assert found[2]["numpy_state"] == found[0]["numpy_state"]


# The checksum of the weights


def test_equal_weights_have_equal_checksums() -> None:
    assert checksum(network()) == checksum(network())
    assert checksum(network()) != checksum(network(seed=1))


def test_the_checksum_is_that_of_the_model_also_inside_ddp(tape: Tape) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    model = network()
    assert checksum(DistributedDataParallel(model)) == checksum(model)
    dist.destroy_process_group()


def test_one_other_weight_of_a_small_model_changes_the_checksum() -> None:
    model = network()
    before = checksum(model)
    with torch.no_grad():
        model[3].bias[1] += 1e-6  # type: ignore[index]
    assert checksum(model) != before


def test_a_checksum_looks_at_few_values_of_a_large_model() -> None:
    model = nn.ModuleList([nn.Linear(64, 64) for _ in range(400)])
    wide = nn.Conv2d(64, 256, 3)
    wide.weight.data = wide.weight.data.contiguous(memory_format=torch.channels_last)
    model.append(wide)
    found = checksum(model)
    assert found["parameters"] == 802
    assert found["values"] <= 96 * 128
    assert checksum(model) == found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_weights_of_any_type_have_a_checksum(dtype: torch.dtype) -> None:
    assert checksum(nn.Linear(3, 3, dtype=dtype))["values"] >= 12


@pytest.mark.parametrize("model", [nn.Identity(), nn.Linear(2, 2, device="meta")])
def test_where_values_cannot_be_read_there_is_no_checksum(model: nn.Module, tape: Tape) -> None:
    trace(model).detach()
    assert tape.fact("initial_parameters") == []


# Loader, sampler and batches


def samples(count: int) -> list[torch.Tensor]:
    return [torch.ones(4) * i for i in range(count)]


def train(loader: Any, accumulate: int = 1) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    handle = trace(model, optimizer, loader)
    for number, batch in enumerate(loader):
        model(batch["x"] if isinstance(batch, dict) else batch).sum().backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
    handle.detach()


def test_loader_and_sampler_say_how_they_are_set_up(tape: Tape) -> None:
    data = samples(24)
    sampler = DistributedSampler(data, 3, 1, shuffle=True, seed=5)  # type: ignore[arg-type,var-annotated]
    loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)  # type: ignore[arg-type,var-annotated]
    handle = trace(network(), loader=loader)
    for epoch in (0, 2, 2):
        sampler.set_epoch(epoch)
        assert len(list(loader)) == 2
    handle.detach()
    facts = one(tape, "loader")
    assert (facts["class"], facts["batch_size"], facts["workers"]) == ("DataLoader", 4, 0)
    assert (facts["pin_memory"], facts["persistent"]) == (False, False)
    facts = one(tape, "sampler")
    assert (facts["class"], facts["replicas"], facts["rank"]) == ("DistributedSampler", 3, 1)
    assert (facts["shuffle"], facts["seed"], facts["epoch"]) == (True, 5, 0)
    assert facts["samples"] == 8
    assert [event.value for event in tape.events("epoch")] == [2]


def test_a_batch_sampler_of_the_users_is_looked_into(tape: Tape) -> None:
    data = samples(12)
    generator = torch.Generator().manual_seed(9)
    sampler = BatchSampler(RandomSampler(data, generator=generator), 3, drop_last=False)
    train(DataLoader(data, batch_sampler=sampler))  # type: ignore[arg-type]
    facts = one(tape, "sampler")
    assert (facts["class"], facts["generator_seed"]) == ("RandomSampler", 9)
    assert one(tape, "batch_size") == 3


def test_the_batch_size_is_what_a_rank_takes_in_a_step(tape: Tape) -> None:
    train(DataLoader(samples(24), batch_size=2), accumulate=3)  # type: ignore[arg-type]
    assert one(tape, "batch_size") == 6


def test_a_loader_that_does_not_say_it_is_measured(tape: Tape) -> None:
    class Mine:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(4):
                yield {"note": "none", "x": torch.ones(5, 4)}

    train(Mine())
    assert one(tape, "batch_size") == 5
    assert one(tape, "loader") == {"class": "Mine"}


def test_a_loop_without_updates_has_no_batch_size(tape: Tape) -> None:
    loader = DataLoader(samples(8), batch_size=2)  # type: ignore[arg-type,var-annotated]
    handle = trace(network(), loader=loader)
    list(loader)
    handle.detach()
    assert tape.fact("batch_size") == []


def test_facts_of_loaders_that_never_stop_coming_end(tape: Tape) -> None:
    model = network()
    handle = trace(model)
    for _ in range(50):
        trace(model, loader=DataLoader(samples(2), batch_size=2))  # type: ignore[arg-type]
    handle.detach()
    assert len(tape.fact("loader")) == len(tape.fact("sampler")) == 32


# The optimizer


def test_the_optimizer_says_how_it_is_set_up(tape: Tape) -> None:
    train(DataLoader(samples(8), batch_size=2))  # type: ignore[arg-type]
    assert one(tape, "learning_rate") == 0.5
    facts = one(tape, "optimizer")
    assert (facts["class"], facts["groups"], facts["learning_rates"]) == ("Adam", 1, [0.5])
    assert facts["betas"] == [0.9, 0.999]
    parameters = one(tape, "model")["parameters"]
    assert one(tape, "optimizer_state")["bytes"] == (2 * parameters + 6) * 4  # and a step each


# DDP


def deep() -> nn.Module:
    return nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])


def steps(ddp: Any, count: int = 4) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    handle = trace(ddp, optimizer)
    for _ in range(count):
        ddp(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    handle.detach()


def test_ddp_tells_its_all_reduces_before_and_after_it_builds_its_buckets_anew(
    tape: Tape, process_group: None
) -> None:
    steps(DistributedDataParallel(deep(), bucket_cap_mb=0.001, gradient_as_bucket_view=True))
    first, last = tape.fact("ddp")
    size = 16 * 17 * 4
    assert (first["rebuilt"], last["rebuilt"]) == (False, True)
    assert sum(first["bucket_bytes"]) == sum(last["bucket_bytes"]) == 4 * size
    assert last["buckets"] == len(last["bucket_bytes"]) == 4
    assert last["gradient_as_bucket_view"] is True
    assert last["find_unused_parameters"] is last["static_graph"] is last["compiled"] is False
    assert "comm_hook" not in last
    assert one(tape, "group")["backend"] == "gloo"


def test_ddp_tells_a_communication_hook_and_a_static_graph(tape: Tape, process_group: None) -> None:
    ddp = DistributedDataParallel(deep(), static_graph=True)
    kind = dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
    ddp._register_builtin_comm_hook(kind)
    steps(ddp)
    last = tape.fact("ddp")[-1]
    assert last["static_graph"] is True
    assert "fp16" in last["comm_hook"].lower()


def test_ddp_under_a_compiled_module_is_known_to_be_compiled(
    tape: Tape, process_group: None
) -> None:
    ddp = DistributedDataParallel(deep())
    compiled: Any = torch.compile(ddp, backend="eager")
    handle = trace(compiled)
    handle.detach()
    assert one(tape, "ddp")["compiled"] is True


@pytest.mark.slow
def test_the_all_reduces_of_a_compiled_ddp_are_those_that_it_tells(
    tape: Tape, process_group: None
) -> None:
    ddp = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]), bucket_cap_mb=2
    )
    compiled: Any = torch.compile(ddp, backend="aot_eager")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    handle = trace(compiled, optimizer)

    def step() -> None:
        compiled(torch.ones(2, 512)).sum().backward()
        optimizer.step()

    for _ in range(4):
        step()
    with torch.profiler.profile() as profile:
        step()
    handle.detach()
    sent = [event for event in profile.events() or () if event.name == "gloo:all_reduce"]
    told = tape.fact("ddp")[-1]
    assert (told["compiled"], told["rebuilt"]) == (True, True)
    assert len(sent) == len(told["bucket_bytes"]) == told["buckets"] > 1
    assert sum(told["bucket_bytes"]) == tape.fact("model")[0]["gradient_bytes"]


def test_weights_that_are_made_later_are_not_counted(tape: Tape) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions say that lazy modules are new
        model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    trace(model).detach()
    assert one(tape, "model")["parameters"] == 4
    assert tape.fact("initial_parameters") == []


def test_a_fact_that_cannot_be_found_costs_only_itself(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "initial_seed", lambda: 1 / 0)
    trace(network()).detach()
    assert failures.pop("fact seeds") == 1
    assert tape.fact("seeds") == []
    assert tape.fact("model") != []


def same_weights_on_all_ranks(rank: int, ranks: int) -> None:
    """Every rank has its own weights before DDP sends them, and the same ones after."""
    model = network(seed=rank)
    mine = [checksum(model)["checksum"], checksum(DistributedDataParallel(model))["checksum"]]
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, mine)
    before, after = zip(*every, strict=True)
    assert len(set(before)) == ranks
    assert len(set(after)) == 1
    threads = threading.active_count()
    with recording(rank, ranks) as tape:
        trace(DistributedDataParallel(model)).detach()
    assert tape.fact("initial_parameters")[0]["checksum"] == after[0]
    assert threading.active_count() == threads


@pytest.mark.slow
def test_ranks_with_the_same_weights_have_the_same_checksum(tmp_path: Path) -> None:
    launch(same_weights_on_all_ranks, 2, tmp_path)
