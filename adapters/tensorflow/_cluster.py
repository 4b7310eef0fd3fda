"""Who this process is to the cluster: TF_CONFIG as it stands, and what the resolver says."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["place_of", "tf_config", "world_of"]

_TRAINS = ("chief", "master", "worker")


def tf_config(text: str | None = None) -> dict[str, Any] | None:
    """The variable as a fact; None where it is not set."""
    text = os.environ.get("TF_CONFIG") if text is None else text
    if text is None:
        return None
    cluster = task = error = None
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            cluster, task = value.get("cluster"), value.get("task")
            error = _wrong(cluster, task)
        else:
            error = "it is no object"
    except ValueError as problem:
        error = f"it is not JSON: {problem}"
    return {"valid": error is None, "error": error, "cluster": cluster, "task": task}


def _wrong(cluster: Any, task: Any) -> str | None:
    if not isinstance(cluster, dict) or not cluster:
        return "it has no cluster"
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        return "it has no task with a type and an index"
    kind = task["type"]
    try:
        index = int(task["index"])
    except (TypeError, ValueError):
        return f"the index {task['index']!r} is no number"
    if kind not in cluster:
        return None if kind == "evaluator" else f"the cluster has no {kind}"
    size = len(cluster[kind])
    return None if 0 <= index < size else f"{kind} {index} is not one of {size}"


def place_of(strategy: Any) -> tuple[str, int]:
    """The role and the index in it of this process: chief, worker, evaluator or ps."""
    resolver = getattr(strategy, "cluster_resolver", None)
    kind = getattr(resolver, "task_type", None)
    index = getattr(resolver, "task_id", None)
    if not kind:
        told = tf_config() or {}
        task = told.get("task")
        if isinstance(task, dict):
            kind, index = task.get("type"), task.get("index")
    role = "chief" if kind == "master" else str(kind or "worker")
    try:
        return role, int(index or 0)
    except (TypeError, ValueError):
        return role, 0


def world_of(strategy: Any) -> tuple[int, int] | None:
    """Rank and world size by the strategy's cluster; None where it says nothing of them."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or not hasattr(resolver, "cluster_spec"):
        return None
    spec = resolver.cluster_spec()
    cluster = spec.as_dict() if spec else {}
    kind, index = place_of(strategy)
    chiefs = len(cluster.get("chief", ())) + len(cluster.get("master", ()))
    world = chiefs + len(cluster.get("worker", ()))
    rank = index + chiefs if kind == "worker" else index
    if kind not in _TRAINS or not 0 <= rank < world:
        return None
    return rank, world
