"""What a rank's training is made of, recorded once: versions, device, model, seeds, buckets.

Nothing here imports a library, starts a device or waits for one: what is not loaded or not
initialised is left out.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.parameter import is_lazy

from tracekit.adapters.torch._ddp import Replica, is_compiled
from tracekit.adapters.torch._facts.checksum import checksum
from tracekit.adapters.torch._facts.sizes import local_bytes
from tracekit.adapters.torch._facts.telling import tell
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop
from tracekit.recorder import Recorder

__all__ = ["tell_facts", "watch_ddp_facts"]

_LIBRARIES = (
    "accelerate",
    "apex",
    "datasets",
    "deepspeed",
    "flash_attn",
    "lightning",
    "megatron.core",
    "numpy",
    "peft",
    "pytorch_lightning",
    "torchvision",
    "transformers",
    "triton",
    "xformers",
)
_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
_CPU_BYTES = 2048
_FINAL_BUCKETS = 3
"""Updates after which DDP's buckets stay as they are: it builds them anew after the first."""

_told: WeakSet[Recorder] = WeakSet()


def tell_facts(model: torch.nn.Module, loop: Loop) -> list[Callable[[], None]]:
    """Record what is known when a model is traced; of the process itself only once."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if loop.recorder not in _told:
        _told.add(loop.recorder)
        _tell("versions", lambda: _versions(device))
        _tell("seeds", lambda: _seeds(device))
    _tell("device", lambda: _device(device, loop))
    _tell("model", lambda: _model(model))
    _tell("initial_parameters", lambda: checksum(model))
    return []


def _tell(name: str, find: Callable[[], Any]) -> None:
    """Record one fact; what has nothing to say says nothing, and what fails costs only itself."""

    @guarded(f"fact {name}")
    def find_and_tell() -> None:
        value = find()
        if value:
            tell(name, value)

    find_and_tell()


def _versions(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "nccl": _nccl(),
        "cudnn": _cudnn(device),
        "driver": _driver(),
    }
    for name in _LIBRARIES:
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None) if module is not None else None
        found[name] = str(version) if version is not None else None
    return {name: version for name, version in found.items() if version}


def _nccl() -> str | None:
    if not hasattr(torch._C, "_nccl_version"):
        return None
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _cudnn(device: torch.device) -> str | None:
    """Only where CUDA runs: asking loads the library."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    version = torch.backends.cudnn.version()
    return str(version) if version else None


def _driver() -> str | None:
    for path in _DRIVERS:
        try:
            with open(path) as file:
                words = file.readline().split()
        except OSError:
            continue
        return next((word for word in words if word[:1].isdigit()), None)
    return None


def _device(device: torch.device, loop: Loop) -> dict[str, Any]:
    if loop.device is not None:
        return {"device": str(device), **(loop.device.describe() or {})}
    found = {"device": str(device), "threads": torch.get_num_threads()}
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            lines = file.read(_CPU_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {**found, "name": names[0]} if names else found


def _model(model: torch.nn.Module) -> dict[str, Any]:
    parameters = [p for p in model.parameters() if not is_lazy(p)]
    trained = [p for p in parameters if p.requires_grad]
    return {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "parameter_bytes": sum(map(local_bytes, parameters)),
        "gradient_bytes": sum(map(local_bytes, trained)),
        "buffer_bytes": sum(local_bytes(b) for b in model.buffers() if not is_lazy(b)),
    }


# Seeds: what makes two ranks draw the same or other numbers


def _seeds(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.initial_seed(),
        "torch_state": _digest(bytes(torch.get_rng_state().tolist())),
        "random_state": _random_state(),
        "numpy_state": _numpy_state(),
        "hash_randomization": bool(sys.flags.hash_randomization),
    }
    module = getattr(torch, device.type, None)
    if device.type != "cpu" and getattr(module, "is_initialized", lambda: False)():
        found[device.type] = module.initial_seed()  # type: ignore[union-attr]
    return {name: value for name, value in found.items() if value is not None}


def _random_state() -> str:
    _, words, _ = random.getstate()
    return _digest(struct.pack(f"{len(words)}Q", *words))


def _numpy_state() -> str | None:
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    state = module.get_state(legacy=False)["state"]
    return _digest(state["key"].tobytes() + str(state.get("pos")).encode())


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


# DDP, whose buckets are final a few updates later


def watch_ddp_facts(
    replica: Replica, model: torch.nn.Module, loop: Loop
) -> list[Callable[[], None]]:
    """Record how a DDP object is set up, and again once its buckets are final."""
    compiled = is_compiled(model)

    def find() -> dict[str, Any]:
        found = replica.described(compiled)
        config = sys.modules.get("torch._dynamo.config") if found.get("compiled") else None
        mode = getattr(config, "optimize_ddp", None)
        return {**found, "optimize_ddp": mode} if mode is not None else found

    _tell("ddp", find)
    left = _FINAL_BUCKETS

    def tell_again() -> None:
        nonlocal left
        left -= 1
        if not left:
            stop()
            _tell("ddp", find)

    stop = loop.watch_updates(tell_again)
    replica.group.tell()
    return [stop]
