"""What a rank's training is made of, recorded once. Nothing here runs a collective or waits."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

from tracekit import recorder
from tracekit.adapters.tensorflow._cluster import place_of, tf_config
from tracekit.adapters.tensorflow._guard import guarded, loaded
from tracekit.recorder import Recorder

__all__ = [
    "tell_checkpoint",
    "tell_dataset",
    "tell_epoch",
    "tell_model",
    "tell_process",
    "tell_reduction",
    "tell_strategy",
]

_LIBRARIES = ("keras", "numpy", "tensorflow", "tf_keras")
_MOST = {"tf_epoch": 16, "checkpoint_state": 8, "reduction": 8}
_told: WeakKeyDictionary[Recorder, Counter[str]] = WeakKeyDictionary()
_told_values: WeakKeyDictionary[Recorder, set[str]] = WeakKeyDictionary()


def _tell(rec: Recorder | None, name: str, value: Any) -> None:
    """Record a fact, unless it was told or there are many of this name already."""
    if rec is None or value is None:
        return
    told = _told.setdefault(rec, Counter())
    values = _told_values.setdefault(rec, set())
    text = f"{name}{value!r}"
    if text in values or told[name] >= _MOST.get(name, 4):
        return
    values.add(text)
    told[name] += 1
    rec.fact(name, value)


# The strategy and the process


@guarded("fact tf_config")
def tell_process(rec: Recorder) -> None:
    """What is known before there is a strategy."""
    _tell(rec, "tf_config", tf_config())
    _tell(rec, "versions", versions())


@guarded("fact strategy")
def tell_strategy(rec: Recorder, strategy: Any) -> None:
    """Which replicas there are, of which workers, on which devices, and how they talk."""
    tell_process(rec)
    role, index = place_of(strategy)
    tf = loaded()
    value = {
        "class": type(strategy).__name__,
        "replicas": int(strategy.num_replicas_in_sync),
        "local_replicas": _local(strategy),
        "workers": _workers(strategy),
        "devices": [str(device) for device in _devices(strategy)],
        "visible_devices": {
            kind: len(tf.config.get_visible_devices(kind)) for kind in ("CPU", "GPU")
        },
        "implementation": _implementation(strategy),
        "keras": keras_name(),
        "tensorflow": str(tf.__version__),
        "role": role,
        "index": index,
    }
    _tell(rec, "strategy", value)


def versions() -> dict[str, str]:
    """The versions of what is loaded."""
    found = {}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def keras_name(model: Any = None) -> str | None:
    """Which Keras it is: that of the model, else the one that is loaded."""
    package = type(model).__mro__[-2].__module__.partition(".")[0] if model is not None else None
    names = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    for name in ("tf_keras", "keras"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is None or (model is not None and name not in names and name != package):
            continue
        return f"tf_keras {version}" if name == "tf_keras" else f"keras {version}"
    return None


def _extended(strategy: Any) -> Any:
    return getattr(strategy, "extended", None)


def _devices(strategy: Any) -> tuple[Any, ...]:
    try:
        return tuple(_extended(strategy).worker_devices)
    except (AttributeError, RuntimeError):  # the strategy that is there when there is none
        return ()


def _local(strategy: Any) -> int | None:
    count = getattr(_extended(strategy), "_num_devices_per_worker", None)
    return int(count) if count is not None else len(_devices(strategy)) or None


def _workers(strategy: Any) -> int:
    return int(getattr(_extended(strategy), "_num_workers", 1) or 1)


def _implementation(strategy: Any) -> str | None:
    options = getattr(_extended(strategy), "_communication_options", None)
    found = getattr(options, "implementation", None)
    return str(getattr(found, "value", found)) if found is not None else None


# The model


@guarded("fact model")
def tell_model(rec: Recorder, model: Any) -> None:
    """Its size, and how it is optimised."""
    variables = list(getattr(model, "trainable_variables", ()))
    if variables:
        sizes = [_size(one) for one in variables]
        value = {
            "class": type(model).__name__,
            "parameters": sum(count for count, _ in sizes),
            "dtypes": sorted({_dtype(one) for one in variables}),
            "parameter_bytes": sum(count * width for count, width in sizes),
            "keras": keras_name(model),
            "steps_per_execution": _number(getattr(model, "steps_per_execution", None))
            or _number(getattr(model, "_steps_per_execution", None)),
            "jit_compile": _plain(getattr(model, "jit_compile", None)),
            "policy": str(getattr(getattr(model, "dtype_policy", None), "name", "") or "") or None,
        }
        _tell(rec, "model", {key: one for key, one in value.items() if one is not None})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        inner = getattr(optimizer, "inner_optimizer", None)
        about = {"class": type(inner or optimizer).__name__}
        if inner is not None:
            about["around"] = type(optimizer).__name__
        _tell(rec, "optimizer", about)


def _size(variable: Any) -> tuple[int, int]:
    count = 1
    for side in tuple(variable.shape):
        count *= int(side or 0)
    tf = loaded()
    return count, int(tf.as_dtype(_dtype(variable)).size) if tf is not None else 4


def _dtype(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype))


def _number(value: Any) -> int | None:
    try:
        return int(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, str)) or value is None else str(value)


# Data


@guarded("fact tf_dataset")
def tell_dataset(dataset: Any, name: str = "train") -> None:
    """What a dataset says of itself and of what it was made of."""
    rec = recorder.current()
    chain = list(_chain(dataset))
    kinds = [type(one).__name__ for one in chain]
    inner = chain[0] if chain else dataset
    shuffle: Any = next((one for one in chain if "Shuffle" in type(one).__name__), None)
    batch = next((one for one in chain if hasattr(one, "_batch_size")), None)
    value = {
        "name": name,
        "cardinality": _cardinality(dataset),
        "shuffle_buffer": _number(getattr(shuffle, "_buffer_size", None)),
        "files": _files(chain),
        "auto_shard": _auto_shard(inner),
        "batch": _number(batch._batch_size) if batch is not None else None,
        "made_by": kinds[:12],
    }
    _tell(rec, "tf_dataset", value)


def _chain(dataset: Any) -> Iterable[Any]:
    """The datasets from the last one made to the first."""
    ahead = [getattr(dataset, "_original_dataset", None) or dataset]
    for _ in range(64):
        if not ahead:
            return
        one = ahead.pop(0)
        if not hasattr(one, "element_spec"):
            continue
        yield one
        inputs = getattr(one, "_inputs", None)
        ahead += list(inputs()) if callable(inputs) else []


def _cardinality(dataset: Any) -> int | None:
    found = getattr(dataset, "cardinality", None)
    if found is None:
        return None
    value = _number(found() if callable(found) else found)
    return value if value is not None and value >= 0 else None


def _files(chain: list[Any]) -> int | None:
    for one in chain:
        names = getattr(one, "_filenames", None)
        shape = getattr(names, "shape", None)
        if names is not None and shape is not None and shape.rank is not None:
            return int(shape.num_elements() or 0)
    return None


def _auto_shard(dataset: Any) -> str | None:
    options = dataset.options() if hasattr(dataset, "options") else None
    policy = getattr(getattr(options, "experimental_distribute", None), "auto_shard_policy", None)
    return str(getattr(policy, "name", policy)) if policy is not None else None


@guarded("fact tf_epoch")
def tell_epoch(epoch: int, batches: int) -> None:
    """How many batches an epoch had on this worker."""
    _tell(recorder.current(), "tf_epoch", {"epoch": epoch, "elements": batches})


# Reductions


@guarded("fact reduction")
def tell_reduction(strategy: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """By which operation a value of the replicas was reduced, and whether it is a mean."""
    op = args[0] if args else kwargs.get("reduce_op")
    value = args[1] if len(args) > 1 else kwargs.get("value")
    locals_ = getattr(value, "values", None)
    first = locals_[0] if isinstance(locals_, tuple) and locals_ else value
    operation = getattr(first, "op", None) if not hasattr(first, "numpy") else None
    mean = _is_mean(operation) if operation is not None else None
    reduced = str(getattr(op, "value", op)).rpartition(".")[2].upper()
    if operation is None and not isinstance(locals_, tuple):
        return  # outside of graphs values have no history, and TensorFlow itself reduces some
    name = str(getattr(operation, "name", "value")).rpartition("/")[2] or "value"
    _tell(
        recorder.current(),
        "reduction",
        {
            "value": name,
            "per_replica": True,
            "reduced": reduced,
            "replicas": int(strategy.num_replicas_in_sync),
            "mean": mean,
        },
    )


def _is_mean(operation: Any) -> bool:
    """Whether a tensor of a graph is a mean that nothing divided afterwards."""
    for _ in range(8):
        kind = operation.type
        if kind in ("Identity", "Cast", "Reshape", "Squeeze") and operation.inputs:
            operation = operation.inputs[0].op
            continue
        return bool(kind == "Mean")
    return False


# Checkpoints


@guarded("fact checkpoint_state")
def tell_checkpoint(saved: Any) -> None:
    """What a checkpoint was made of: on all workers it should be the same."""
    rec = recorder.current()
    if rec is None or _told.setdefault(rec, Counter())["checkpoint_state"] >= 8:
        return
    if type(saved).__name__ == "CheckpointManager":
        saved = saved.checkpoint
    variables = _variables(saved)
    lines = sorted(f"{name} {shape} {dtype}" for name, shape, dtype in variables)
    counter = getattr(saved, "_save_counter", None)
    _tell(
        rec,
        "checkpoint_state",
        {
            "step": rec.step,
            "save_counter": _number(counter),
            "variables": len(lines),
            "checksum": blake2b("\n".join(lines).encode(), digest_size=8).hexdigest(),
        },
    )


def _variables(root: Any) -> list[tuple[str, str, str]]:
    tracks = hasattr(root, "save_counter") and hasattr(root, "restore")
    model = root if tracks else getattr(root, "model", root)  # a callback has one
    found = [] if tracks else list(getattr(model, "variables", None) or ())
    tf = loaded()
    if not found and tf is not None and hasattr(tf, "Module"):
        view = getattr(tf.train, "TrackableView", None)
        found = [one for one in view(root).descendants() if _is_variable(one)] if view else []
    return [(str(one.name).partition(":")[0], str(tuple(one.shape)), _dtype(one)) for one in found]


def _is_variable(one: Any) -> bool:
    return all(hasattr(one, name) for name in ("shape", "dtype", "name", "assign"))
