"""This rank's place in the parallel groups, from whoever knows it: meshes, groups, frameworks.

Nothing is asked of other ranks. What is found is told as the fact ``role``, anew when more of it
becomes known: coordinates and sizes by dimension, and whose word it is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.torch._facts.frameworks import deepspeed_places, megatron_places
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop
from tracekit.recorder import Recorder

__all__ = ["Places", "note_places", "watch_roles"]

Places = dict[str, tuple[int, int]]
"""Coordinate and size by dimension."""

_DIMENSIONS = {
    "dp": "dp replicate shard dp_replicate dp_shard fsdp hsdp ddp zero data data_parallel batch",
    "tp": "tp model mp tensor tensor_parallel model_parallel",
    "pp": "pp pipe pipeline stage pipeline_parallel",
    "cp": "cp context context_parallel",
    "sp": "sp seq sequence sequence_parallel ulysses",
    "ep": "ep expert experts expert_parallel",
}
_DIMENSION_OF = {name: known for known, names in _DIMENSIONS.items() for name in names.split()}
_SHARDS = ("replicate", "shard")
"""What the dimensions of a mesh without names are to a model that is sharded over it."""
_OF_GROUP = {
    "DATA_PARALLEL_GROUP": "dp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}
"""Descriptions that Megatron gives its process groups."""
_MESH_GROUP = "mesh_"
"""What a DeviceMesh puts before the name of a dimension to describe its groups."""
_SOURCES = ("device_mesh", "megatron", "deepspeed", "group_names", "groups")
"""The first one that places the rank in the whole world is believed."""


class Roles:
    """What is known of the place of one rank."""

    def __init__(self) -> None:
        self._known: dict[str, list[Places]] = {source: [] for source in _SOURCES}
        self._told: dict[str, Any] | None = None

    def note(self, source: str, places: Places) -> None:
        """Somebody knows something."""
        if places and places not in self._known[source]:
            self._known[source].append(places)

    def role(self, world: int) -> dict[str, Any] | None:
        """The place as a fact; parts from several sources where none knows all."""
        by_source = {source: _merged(known) for source, known in self._known.items() if known}
        for source, places in by_source.items():
            if _size(places) >= world:
                return _as_fact(places, source)
        if not by_source:
            return None
        return _as_fact(_merged(list(by_source.values())), next(iter(by_source)))

    def tell(self, world: int) -> None:
        """Record the role, when it is another than before."""
        role = self.role(world)
        if role is not None and role != self._told:
            self._told = role
            recorder.fact("role", role)


_roles: WeakKeyDictionary[Recorder, Roles] = WeakKeyDictionary()


def _merged(known: list[Places]) -> Places:
    """One place from several: who knows most dimensions first, others add what is missing."""
    places: Places = {}
    for more in sorted(known, key=lambda one: -len(one)):
        places = {**more, **places}
    return places


def _size(places: Places) -> int:
    """How many ranks these coordinates tell apart; experts live on ranks that are counted."""
    return prod(size for dimension, (_, size) in places.items() if dimension != "ep")


def _as_fact(places: Places, source: str) -> dict[str, Any]:
    ordered = sorted(places.items())
    return {
        **{dimension: at for dimension, (at, _) in ordered},
        "sizes": {dimension: size for dimension, (_, size) in ordered},
        "source": source,
    }


@guarded("roles")
def note_places(source: str, places: Places) -> None:
    """Take a part of this rank's place from somebody who knows it, and tell it."""
    rec = recorder.current()
    if rec is not None and dist.is_initialized():
        roles = _roles.setdefault(rec, Roles())
        roles.note(source, places)
        roles.tell(dist.get_world_size())


def watch_roles(model: torch.nn.Module, loop: Loop) -> list[Callable[[], None]]:
    """Tell the role as far as it is known, and again when meshes are made and after an update.

    A model may be wrapped or sharded after it was traced; once it is trained, it is no more.
    """
    held = weakref.ref(model)
    _look(model)

    def updated() -> None:
        stop()
        model = held()
        if model is not None:
            _look(model)

    stop = loop.watch_updates(updated)
    mesh = _mesh_class()
    return [*([patch(mesh, "__init__", _traced_mesh)] if mesh is not None else []), stop]


def _mesh_class() -> type | None:
    """``DeviceMesh``; None where this version of PyTorch has no meshes."""
    try:
        from torch.distributed.device_mesh import DeviceMesh
    except ImportError:
        return None
    return DeviceMesh


def _look(model: torch.nn.Module) -> None:
    if dist.is_initialized():
        note_places("megatron", megatron_places())
        note_places("deepspeed", deepspeed_places(model))
        _look_at_groups()
        _look_at(model)


def _traced_mesh(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            _mesh_made(self)

    return __init__


@guarded("roles")
def _mesh_made(mesh: Any) -> None:
    if _root(mesh) is mesh:
        note_places("device_mesh", places_of_mesh(mesh))


# Meshes


def places_of_mesh(mesh: Any, shards: bool = False) -> Places:
    """This rank's place on a mesh by the names of its dimensions, or as a shard of a replica."""
    at = mesh.get_coordinate()
    if at is None:
        return {}
    sizes = tuple(mesh.mesh.shape)
    names = mesh.mesh_dim_names or (_SHARDS[-len(sizes) :] if shards else ())
    if len(names) != len(sizes):
        return {}
    each = zip(names, at, sizes, strict=True)
    return _together((name, int(place), int(size)) for name, place, size in each)


def _together(named: Iterable[tuple[Any, int, int]]) -> Places:
    """Dimensions of one kind count as one, the first of them slowest: replicas of shards."""
    parts: dict[str, dict[str, tuple[int, int]]] = {}
    for name, at, size in named:
        known = _DIMENSION_OF.get(str(name).lower())
        if known is not None:
            parts.setdefault(known, {})[str(name)] = (at, size)
    places: Places = {}
    for known, named_parts in parts.items():
        flat = named_parts.get(known)  # made of the others, where there are others
        chosen = [flat] if flat is not None else list(named_parts.values())
        at, size = 0, 1
        for part_at, part_size in chosen:
            at, size = at * part_size + part_at, size * part_size
        places[known] = (at, size)
    return places


def _root(mesh: Any) -> Any:
    """The mesh that this one was cut from, or itself."""
    find = getattr(mesh, "_get_root_mesh", None)
    if find is not None:
        return find()
    resources = getattr(torch.distributed.device_mesh, "_mesh_resources", None)
    find = getattr(resources, "get_root_mesh", None)
    return find(mesh) if find is not None else mesh


# Models and groups


@guarded("roles")
def _look_at(model: torch.nn.Module) -> None:
    """The meshes and groups that a model's parameters and wrappers live on."""
    seen: set[int] = set()
    sharded = _fsdp2(model)
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is None or id(mesh) in seen:
            continue
        seen.add(id(mesh))
        root = _root(mesh)
        places = places_of_mesh(root, sharded and root is mesh)
        note_places("device_mesh", places)
    for module in model.modules():
        groups = _replicas(module)
        if groups and id(groups[-1]) not in seen:
            seen.add(id(groups[-1]))
            each = zip(_SHARDS[-len(groups) :], groups, strict=True)
            note_places(
                "groups",
                _together((name, dist.get_rank(g), dist.get_world_size(g)) for name, g in each),
            )


def _fsdp2(model: torch.nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to a part of the model."""
    return any(
        any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
        for module in model.modules()
    )


def _replicas(module: torch.nn.Module) -> list[Any]:
    """The groups among which a wrapper replicates and shards its module."""
    names = {base.__name__ for base in type(module).__mro__}
    if not names & {"DistributedDataParallel", "FullyShardedDataParallel"}:
        return []
    groups = (getattr(module, name, None) for name in ("_inter_node_pg", "process_group"))
    return [group for group in groups if group is not None]


@guarded("roles")
def _look_at_groups() -> None:
    """What the descriptions of the process groups say that this rank is in."""
    world = getattr(dist.distributed_c10d, "_world", None)
    described: dict[str, set[tuple[int, int]]] = {}
    for group in list(getattr(world, "pg_map", None) or {}):
        rank = dist.get_rank(group)
        description = str(getattr(group, "group_desc", "") or "")
        if rank >= 0 and description:
            place = (rank, dist.get_world_size(group))
            described.setdefault(description, set()).add(place)
    note_places("group_names", _named(described, _OF_GROUP))
    mesh = {
        description: description.removeprefix(_MESH_GROUP)
        for description in described
        if description.startswith(_MESH_GROUP)
    }
    note_places("device_mesh", _named(described, mesh))


def _named(described: Mapping[str, set[tuple[int, int]]], names: Mapping[str, str]) -> Places:
    """Places by the dimensions that descriptions name; nothing where groups of a name differ."""
    found = []
    for description, places in described.items():
        if description in names:
            if len(places) > 1:
                return {}
            found.append((names[description], *next(iter(places))))
    return _together(found)
