"""Runs whose ranks tell facts, and what is found in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.analysis import Analysis, analyze
from tracekit.dataset.coverage import Coverage
from tracekit.findings import Finding
from tracekit.testing import RunBuilder

HOSTS = ("node-0", "node-1")
MULTI = "MultiWorkerMirroredStrategy"


def verdict(run: RunBuilder, coverage: Coverage | None = None) -> Analysis:
    """The verdict over a run."""
    with run.engine() as engine:
        return analyze(engine, coverage)


def found(run: RunBuilder, id_: str, coverage: Coverage | None = None) -> list[Finding]:
    """The findings with this id."""
    return [one for one in verdict(run, coverage).findings if one.id == id_]


def silent(run: RunBuilder, *but: str) -> bool:
    """Whether nothing at all is found but what is named."""
    return not [one.id for one in verdict(run).findings if one.id not in but]


def workers(
    count: int = 2,
    steps: int = 25,
    hosts: tuple[str, ...] = ("node-0",),
    addresses: list[str] | None = None,
    tell: bool = True,
    name: str = MULTI,
    **strategy: Any,
) -> RunBuilder:
    """A healthy training on so many workers; ``strategy`` changes what they say of it."""
    run = RunBuilder(world_size=count, jitter=0.05, hosts=hosts, domains=["boot:0"] * len(hosts))
    cluster = {"worker": addresses or [f"{run.hosts[i]}:2222" for i in range(count)]}
    for rank in range(count):
        if tell:
            run.fact("tf_config", told(cluster, rank), rank)
        run.fact("strategy", how(count, rank, name, **strategy), rank)
    run.steps(steps)
    return run


def told(cluster: Mapping[str, Any], index: int, job: str = "worker") -> dict[str, Any]:
    """What a process knows of its cluster."""
    task = {"type": job, "index": index}
    return {"valid": True, "error": None, "cluster": dict(cluster), "task": task}


def how(count: int, rank: int, name: str = MULTI, **changes: Any) -> dict[str, Any]:
    """What a process says of its strategy."""
    return {
        "class": name,
        "replicas": count,
        "local_replicas": 1,
        "workers": count,
        "devices": [f"/job:worker/replica:0/task:{rank}/device:CPU:0"],
        "visible_devices": {"CPU": 1, "GPU": 0},
        "implementation": "RING",
        "keras": "tf_keras 2.21.0",
        "tensorflow": "2.21.0",
        "role": "worker",
        "index": rank,
        **changes,
    }


def replace_fact(run: RunBuilder, name: str, rank: int, value: Any) -> None:
    """Let a rank tell something else under this name."""
    run.facts = [one for one in run.facts if (one["name"], one["rank"]) != (name, rank)]
    if value is not None:
        run.fact(name, value, rank)
