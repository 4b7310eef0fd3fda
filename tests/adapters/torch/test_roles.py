"""Who knows a rank's place, whose word counts, and what is told of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.adapters.torch.jobs import launch
from tests.adapters.torch.tape import Tape, recording
from tracekit.adapters._patch import patched
from tracekit.adapters.torch import trace
from tracekit.adapters.torch._facts.frameworks import deepspeed_places, megatron_places
from tracekit.adapters.torch._facts.roles import Roles, _named, _together


def told(tape: Tape) -> list[Any]:
    return [fact["value"] for fact in tape.facts if fact["name"] == "role"]


# What dimensions mean


@pytest.mark.parametrize(
    ("named", "places"),
    [
        ([("dp", 1, 2), ("tp", 0, 4)], {"dp": (1, 2), "tp": (0, 4)}),
        ([("data_parallel", 1, 2), ("model", 0, 4)], {"dp": (1, 2), "tp": (0, 4)}),
        ([("dp_replicate", 1, 2), ("dp_shard", 2, 4)], {"dp": (6, 8)}),
        ([("dp_replicate", 1, 2), ("dp_shard", 2, 4), ("dp", 6, 8)], {"dp": (6, 8)}),
        (
            [("pipe", 1, 2), ("FSDP", 0, 2), ("cp", 1, 2)],
            {"pp": (1, 2), "dp": (0, 2), "cp": (1, 2)},
        ),
        ([("pp", 0, 2), ("of my own", 1, 2)], {"pp": (0, 2)}),
        ([(None, 0, 2)], {}),
    ],
)
def test_names_of_dimensions_are_understood(named: Any, places: dict[str, Any]) -> None:
    assert _together(named) == places


def test_groups_of_one_name_and_several_sizes_say_nothing() -> None:
    described = {"mesh_dp": {(0, 2), (0, 4)}, "mesh_tp": {(1, 2)}}
    assert _named(described, {"mesh_dp": "dp", "mesh_tp": "tp"}) == {}
    assert _named(described, {"mesh_tp": "tp"}) == {"tp": (1, 2)}


def test_who_places_the_rank_in_the_whole_world_is_believed() -> None:
    roles = Roles()
    roles.note("groups", {"dp": (1, 2)})
    assert roles.role(4) == {"dp": 1, "sizes": {"dp": 2}, "source": "groups"}
    roles.note("group_names", {"dp": (1, 2), "tp": (0, 2)})
    assert roles.role(4) == {
        "dp": 1, "tp": 0, "sizes": {"dp": 2, "tp": 2}, "source": "group_names"
    }  # fmt: skip
    roles.note("device_mesh", {"tp": (1, 2)})
    assert roles.role(4) == {
        "dp": 1, "tp": 0, "sizes": {"dp": 2, "tp": 2}, "source": "group_names"
    }  # fmt: skip
    roles.note("device_mesh", {"pp": (1, 2), "dp": (1, 2)})
    role = roles.role(8)
    assert role is not None
    assert (role["dp"], role["pp"], role["tp"], role["source"]) == (1, 1, 1, "device_mesh")


def test_parts_of_a_place_are_put_together() -> None:
    """Replicas inside of pipeline stages: the wrapper knows the one, the stage the other."""
    roles = Roles()
    roles.note("groups", {"dp": (1, 2)})
    roles.note("groups", {"pp": (0, 2)})
    assert roles.role(4) == {
        "dp": 1, "pp": 0, "sizes": {"dp": 2, "pp": 2}, "source": "groups"
    }  # fmt: skip


# Megatron and DeepSpeed, by their public functions


@pytest.fixture
def module() -> Iterator[Callable[..., ModuleType]]:
    """Makes modules that count as imported until the test ends."""
    made: dict[str, ModuleType | None] = {}

    def make(name: str, **content: Any) -> ModuleType:
        found = ModuleType(name)
        vars(found).update(content)
        made[name] = sys.modules.get(name)
        sys.modules[name] = found
        return found

    yield make
    for name, before in made.items():
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


def uninitialised() -> int:
    raise AssertionError("group is not initialized")


def parallel_state(**at: tuple[int, int]) -> dict[str, Any]:
    functions: dict[str, Any] = {}
    for name, (rank, size) in at.items():
        functions[f"get_{name}_rank"] = lambda rank=rank: rank
        functions[f"get_{name}_world_size"] = lambda size=size: size
    return functions


def test_megatron_s_parallel_state_is_asked_once_it_is_imported(
    module: Callable[..., ModuleType],
) -> None:
    assert megatron_places() == {}
    module(
        "megatron.core.parallel_state",
        **parallel_state(
            tensor_model_parallel=(1, 2), pipeline_model_parallel=(0, 4), data_parallel=(3, 8)
        ),
        get_context_parallel_rank=uninitialised,
        get_context_parallel_world_size=uninitialised,
    )
    assert megatron_places() == {"tp": (1, 2), "pp": (0, 4), "dp": (3, 8)}


class DeepSpeedEngine(nn.Linear):
    """What a DeepSpeed engine shows of itself."""

    optimizer: Any = None
    global_rank, dp_world_size, mp_world_size = 2, 4, 1

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


class ZeroOptimizer:
    """An optimizer that is none of torch's."""

    def __init__(self, engine: nn.Module) -> None:
        self.inner = torch.optim.SGD(engine.parameters(), lr=0.1)

    def step(self) -> None:
        self.inner.step()
        self.inner.zero_grad()


def test_a_deepspeed_engine_tells_its_place(module: Callable[..., ModuleType]) -> None:
    engine = DeepSpeedEngine(2, 2)
    assert deepspeed_places(engine) == {}  # somebody else's class of that name
    module("deepspeed")
    assert deepspeed_places(engine) == {"dp": (2, 4)}
    engine.mp_world_size = 2
    assert deepspeed_places(engine) == {}
    engine.mpu = SimpleNamespace(**parallel_state(model_parallel=(1, 2), data_parallel=(1, 2)))  # type: ignore[assignment]
    assert deepspeed_places(engine) == {"tp": (1, 2), "dp": (1, 2)}
    engine.grid = SimpleNamespace(  # type: ignore[assignment]
        **parallel_state(pipe_parallel=(0, 2), slice_parallel=(1, 2), data_parallel=(1, 2))
    )
    assert deepspeed_places(engine) == {"pp": (0, 2), "tp": (1, 2), "dp": (1, 2)}


def test_the_steps_of_a_deepspeed_engine_are_those_of_its_optimizer(
    module: Callable[..., ModuleType],
) -> None:
    module("deepspeed")
    engine = DeepSpeedEngine(2, 2)
    engine.optimizer = ZeroOptimizer(engine)
    with recording() as tape:
        handle = trace(engine)
        for number in range(6):
            engine.backward(engine(torch.ones(1, 2)).sum())
            if number % 2:
                engine.optimizer.step()
        handle.detach()
    spans = tape.spans()
    phases = [(s.name, s.step, s.micro_step) for s in spans if s.kind == "optimizer"]
    assert [step for _, step, _ in phases] == [0, 1, 2]
    assert len([s for s in spans if s.kind == "backward"]) == 6
    assert patched() == []


# Real groups


def meshes_job(rank: int, ranks: int) -> None:
    """Meshes made before, found by their groups, and after."""
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    with recording(rank, ranks) as tape:
        handle = trace(nn.Linear(2, 2))
        here = {"dp": rank % 2, "pp": rank // 2}
        assert told(tape) == [{**here, "sizes": {"dp": 2, "pp": 2}, "source": "device_mesh"}]
        init_device_mesh("cpu", (4,))
        assert len(told(tape)) == 1  # no names, nothing new
        experts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("of my own", "ep"))
        assert told(tape)[1:] == [
            {
                **here,
                "ep": rank % 2,
                "sizes": {"dp": 2, "ep": 2, "pp": 2},
                "source": "device_mesh",
            }
        ]
        assert experts["ep"].size() == 2
        assert len(told(tape)) == 2  # nor is a part of a mesh
        handle.detach()
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "cp"))
        assert len(told(tape)) == 2
    assert patched() == []


def named_groups_job(rank: int, ranks: int) -> None:
    for members in ([0, 1], [0], [1]):
        name = "TENSOR_MODEL_PARALLEL_GROUP" if len(members) > 1 else "DATA_PARALLEL_GROUP"
        dist.new_group(members, group_desc=name)
    with recording(rank, ranks) as tape:
        trace(nn.Linear(2, 2)).detach()
    assert told(tape) == [
        {"dp": 0, "tp": rank, "sizes": {"dp": 1, "tp": 2}, "source": "group_names"}
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("job", "ranks"), [(meshes_job, 4), (named_groups_job, 2)])
def test_meshes_and_named_groups_tell_the_role(
    job: Callable[[int, int], None], ranks: int, tmp_path: Path
) -> None:
    launch(job, ranks, tmp_path)
