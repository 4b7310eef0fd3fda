"""Who this process is: arguments win, then the launcher, then rank 0 of 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError
from tracekit.session._environment import Environment
from tracekit.session._rundir import fresh_uid, join_by_cluster

__all__ = ["Identity", "Options", "identity_of"]


@dataclass(frozen=True, slots=True)
class Options:
    """What ``start`` was asked for; None where the environment decides."""

    run: str | None = None
    dir: str | None = None
    rank: int | None = None
    world_size: int | None = None
    agent: bool = True
    quota_bytes: int = 1 << 30
    segment_bytes: int = 4 << 20
    stall_s: float | None = None
    role: Mapping[str, int] | None = None
    overhead: str | None = None
    span_exporter: Any = None
    otlp: bool | str | None = None
    nccl_log: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rank of which attempt of which run; ``assumed`` when nobody said the rank."""

    uid: str
    uid_source: str
    attempt: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    assumed: bool


def identity_of(options: Options, environment: Environment, base: Path) -> Identity:
    """Decide who this process is: arguments win, then the launcher, then rank 0 of 1."""
    rank, world = options.rank, options.world_size
    local_rank, local_world = environment.local_rank, environment.local_world_size
    if rank is None:
        rank = environment.rank
    else:
        local_rank = rank if local_rank is None else local_rank
    if world is None:
        world = environment.world_size
    assumed = rank is None
    if world is None:
        world = 1 if rank is None else rank + 1
    if rank is None:
        rank = 0
    if not 0 <= rank < world:
        raise UsageError(f"rank {rank} is not one of {world} ranks")
    role = options.role
    if role is not None and not (
        isinstance(role, Mapping)
        and all(isinstance(name, str) and isinstance(at, int) for name, at in role.items())
    ):
        raise UsageError(f'role= needs numbers by name, as {{"dp": 0, "pp": 1}}, not {role!r}')
    if options.overhead not in (None, "measure"):
        raise UsageError(f'overhead= is "measure" or nothing, not {options.overhead!r}')
    parent = environment.parent
    label = options.run or environment.label
    cluster = environment.cluster
    if cluster is None and label is not None and not assumed:
        cluster = f"{label} of {world}"
    if environment.uid is not None:
        uid, source = environment.uid, "launcher"
    elif parent is not None and parent.get("uid"):
        uid, source = str(parent["uid"]), "parent"
    elif environment.launcher_process is not None:
        uid, source = environment.launcher_process, "launcher_process"
    elif cluster is not None and world > 1:
        member, addresses = f"{environment.attempt}.{rank}", environment.cluster is not None
        uid, source = _join(base, cluster, member, addresses), "cluster"
    else:
        uid, source = fresh_uid(), "fresh"
    attempt = environment.attempt
    if source == "parent" and parent is not None:
        attempt = int(parent.get("attempt", attempt))
    return Identity(
        uid=uid,
        uid_source=source,
        attempt=attempt,
        rank=rank,
        world_size=world,
        local_rank=local_rank if local_rank is not None else rank,
        local_world_size=local_world or world,
        assumed=assumed,
    )


def _join(base: Path, cluster: str, member: str, one_job: bool) -> str:
    try:
        return join_by_cluster(base, cluster, member, one_job)
    except OSError:
        return fresh_uid()
