"""What the environment says about this process: the one place that reads it."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tracekit.journal.process import boot_id, namespace, process_start

__all__ = ["PARENT", "Environment", "Machine", "machine", "read_environment", "settings"]

PARENT = "TRACEKIT_PARENT"
"""Set by a session for the processes it spawns: JSON with dir, label, uid and attempt."""

_NO_ID = {"", "none", "default", "None"}
_RANK_NAMES = (
    # rank, world size, local rank, local world size
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun and its kin
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_SETTINGS = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|FI|OMP|GOMP|KMP|MKL|OPENBLAS|TORCH|TORCHELASTIC|TORCHINDUCTOR|PYTORCH|CUDA"
    r"|CUBLAS|CUDNN|NVIDIA|HIP|HSA|ROCR|XLA|TF|KERAS|MASTER)_\w+"
    r"|PYTHONHASHSEED|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|LD_PRELOAD"
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|SIGNATURE", re.I)
_SECRET_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]*@"  # a URL with a password
    r"|\b(?:hf|sk|pk|rk|gh[oprsu]|github_pat|glpat|xox[abprs]|npm|pypi)[-_]\w{16,}"
    r"|\b(?:AKIA|ASIA|AIza)\w{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}"  # a JSON web token
    r"|\b(?=[A-Za-z]*\d)[A-Za-z\d+]{40,}={0,2}(?![\w/.-])"  # long and without words
    r"|-----BEGIN "
    r"|\bbearer\s|password|passwd|secret|token|api_?key",
    re.I,
)
_TRACEPARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}(?P<rest>$|-.*$)"
)
_MASKED = "***"
_LONGEST_SETTING = 400
_MOST_SETTINGS = 100


@dataclass(frozen=True, slots=True)
class Environment:
    """What launchers and users say; None or empty where they say nothing."""

    disabled: bool
    directory: str | None
    label: str | None
    rank: int | None
    world_size: int | None
    local_rank: int | None
    local_world_size: int | None
    uid: str | None
    launcher: str | None
    launcher_process: str | None
    """Names the launcher's process on this host where it gives its job no id."""
    cluster: str | None
    """What all processes of a job share when nobody gives the job an id."""
    attempt: int
    parent: dict[str, Any] | None
    otlp: str | None
    """Whether, and which steps, the agent exports live."""
    apart: str | None = None
    """What a process is that belongs to a job and is no rank of its training: ``evaluator-0``."""
    traceparent: dict[str, str] | None = None
    """The span around the job, by W3C's ``TRACEPARENT``: trace_id and span_id in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Who this process is to the others: host, boot, clock domain, pid and its start."""

    host: str
    boot_id: str
    time_ns: str
    """The time namespace: its monotonic clock may differ from the host's."""
    pid_ns: str
    pid: int
    pid_start: int | None
    cores: int
    """Cores that this process may use; ranks that share them wait for each other's."""


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the environment; what cannot be a number is treated as not given."""
    env = os.environ if environ is None else environ
    rank = world = local_rank = local_world = None
    for names in _RANK_NAMES:
        rank, world = _number(env.get(names[0])), _number(env.get(names[1]))
        if rank is not None and world is not None and 0 <= rank < world:
            local_rank, local_world = _number(env.get(names[2])), _number(env.get(names[3]))
            break
        rank = world = None
    cluster = apart = None
    if rank is None:
        rank, world, cluster, apart = _from_tf_config(env.get("TF_CONFIG"))
    if cluster is None and env.get("MASTER_PORT"):
        cluster = f"{env.get('MASTER_ADDR', '')}:{env['MASTER_PORT']}"
    uid, launcher, attempt = _job(env)
    return Environment(
        disabled=env.get("TRACEKIT_DISABLED", "").strip().lower() not in ("", "0", "false", "no"),
        directory=env.get("TRACEKIT_DIR") or None,
        label=env.get("TRACEKIT_RUN") or None,
        rank=rank,
        world_size=world,
        local_rank=local_rank,
        local_world_size=local_world,
        uid=uid,
        launcher=launcher,
        launcher_process=_launcher_process() if launcher and not uid else None,
        cluster=cluster,
        attempt=attempt,
        parent=_object(env.get(PARENT)),
        otlp=env.get("TRACEKIT_OTLP", "").strip() or None,
        apart=apart,
        traceparent=_traceparent(env.get("TRACEPARENT")),
    )


def settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that libraries of training jobs look at, without what may be a secret."""
    env = os.environ if environ is None else environ
    found: dict[str, str] = {}
    for name in sorted(env):
        if _SETTINGS.fullmatch(name) and len(found) < _MOST_SETTINGS:
            value = env[name]
            secret = _SECRET_NAME.search(name) or _SECRET_VALUE.search(value)
            found[name] = _MASKED if secret else value[:_LONGEST_SETTING]
    return found


def machine() -> Machine:
    """Ask the kernel who this process is."""
    return Machine(
        host=socket.gethostname() or platform.node() or "localhost",
        boot_id=boot_id(),
        time_ns=namespace("time"),
        pid_ns=namespace("pid"),
        pid=os.getpid(),
        pid_start=process_start(os.getpid()),
        cores=_cores(),
    )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _job(env: Mapping[str, str]) -> tuple[str | None, str | None, int]:
    """The launcher's id of the job, which launcher it is, and which restart this is."""
    restart = _number(env.get("TORCHELASTIC_RESTART_COUNT")) or 0
    elastic = env.get("TORCHELASTIC_RUN_ID", "")
    if elastic not in _NO_ID:
        return elastic, "torchelastic", restart
    if env.get("SLURM_JOB_ID"):
        job = f"slurm-{env['SLURM_JOB_ID']}"
        step = env.get("SLURM_STEP_ID")
        return (
            f"{job}.{step}" if step else job,
            "slurm",
            restart or _number(env.get("SLURM_RESTART_COUNT")) or 0,
        )
    for name, launcher in (("RAY_JOB_ID", "ray"), ("KUBEFLOW_TRAINING_JOB_ID", "kubernetes")):
        if env.get(name, "") not in _NO_ID:
            return env[name], launcher, restart
    return None, "torchelastic" if "TORCHELASTIC_RUN_ID" in env else None, restart


def _launcher_process() -> str:
    """A name of the parent process that restarts of its workers share."""
    parent = os.getppid()
    text = f"{boot_id()} {parent} {process_start(parent)}"
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _from_tf_config(
    text: str | None,
) -> tuple[int | None, int | None, str | None, str | None]:
    """Rank, world size and cluster of TensorFlow's own variable; chief first, then workers.

    An evaluator and a parameter server are no ranks of the training, and do not join its run.
    """
    config = _object(text)
    if config is None:
        return None, None, None, None
    try:
        cluster, task = config["cluster"], config["task"]
        chiefs = len(cluster.get("chief", ())) + len(cluster.get("master", ()))
        world = chiefs + len(cluster.get("worker", ()))
        kind, index = task["type"], int(task["index"])
        shared = json.dumps(cluster, sort_keys=True)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, None, None, None
    if kind in ("evaluator", "ps"):
        return None, None, None, f"{kind}-{index}"
    rank = index + chiefs if kind == "worker" else index
    if kind not in ("worker", "chief", "master") or not 0 <= rank < world:
        return None, None, shared, None
    return rank, world, shared, None


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _traceparent(text: str | None) -> dict[str, str] | None:
    """The ids in a ``traceparent``; of a version to come more may follow them."""
    found = _TRACEPARENT.match(text.strip().lower()) if text else None
    if found is None or (found["version"] == "00" and found["rest"]):
        return None
    return {"trace_id": found["trace"], "span_id": found["span"]}


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None
