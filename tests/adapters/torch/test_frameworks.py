"""DeepSpeed and Megatron-core as they are, where they are installed: steps, calls and places."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tests.adapters.torch.jobs import launch
from tests.adapters.torch.tape import recording
from tracekit.adapters.torch import trace

STEPS, ACCUMULATED = 5, 2


def environment(rank: int, ranks: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        DS_ACCELERATOR="cpu",
    )


def train_with_deepspeed(rank: int, ranks: int) -> None:
    environment(rank, ranks)
    import deepspeed

    deepspeed.init_distributed("gloo", dist_init_required=False)
    for stage in (0, 1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        settings = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": ACCUMULATED,
            "zero_optimization": {"stage": stage},
            "zero_force_ds_cpu_optimizer": False,
        }
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        with recording(rank, ranks) as tape:
            handle = trace(engine)
            for _ in range(STEPS * ACCUMULATED):
                loss = engine(torch.ones(4, 8)).square().mean()
                engine.backward(loss)
                engine.step()
            handle.detach()
        spans = tape.spans()
        names = [span.name for span in spans]
        assert names.count("forward") == names.count("backward") == STEPS * ACCUMULATED, stage
        assert names.count("optimizer_step") == STEPS, stage
        steps = {span.step for span in spans if span.name == "optimizer_step"}
        assert steps == set(range(STEPS)), stage
        later = [span for span in spans if span.name == "backward" and (span.step or 0) > 0]
        assert {span.micro_step for span in later} == {0, 1}, stage
        calls = [span for span in spans if span.kind == "comm"]
        assert calls, stage  # the engine reduces gradients by torch.distributed, from Python
        assert all(span.group_size == ranks for span in calls)
        [role] = tape.fact("role")
        assert role["dp"] == rank
        assert role["sizes"]["dp"] == ranks


@pytest.mark.slow
def test_a_deepspeed_engine_s_updates_are_steps(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    launch(train_with_deepspeed, 2, tmp_path)


def ask_megatron(rank: int, ranks: int) -> None:
    environment(rank, ranks)
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=1
    )
    with recording(rank, ranks) as tape:
        trace(nn.Linear(1, 1)).detach()
    role: dict[str, Any] = tape.fact("role")[-1]
    assert (role["tp"], role["dp"]) == (rank % 2, rank // 2)
    assert (role["sizes"]["tp"], role["sizes"]["dp"]) == (2, ranks // 2)
    parallel_state.destroy_model_parallel()


@pytest.mark.slow
def test_megatron_tells_a_rank_s_place(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    launch(ask_megatron, 4, tmp_path)
