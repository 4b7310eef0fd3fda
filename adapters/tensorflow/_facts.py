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
    "about_dataset",
    "filled",
    "tell_checkpoint",
    "tell_dataset",
    "tell_epoch",
    "tell_input",
    "tell_model",
    "tell_process",
    "tell_reduction",
    "tell_strategy",
]

_LIBRARIES = ("keras", "numpy", "tensorflow", "tf_keras")
_JOINING = ("horovod", "byteps")
"""What lets processes train together of which TensorFlow knows nothing."""
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
        "logical_devices": _logical(tf, role, index),
        "implementation": _implementation(strategy),
        "joined_by": next((name for name in _JOINING if name in sys.modules), None),
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
    except (AttributeError, RuntimeError):
        # Without a strategy TensorFlow has one all the same, which takes the first accelerator.
        tf = loaded()
        return (f"/device:{'GPU' if tf.config.get_visible_devices('GPU') else 'CPU'}:0",)


def _logical(tf: Any, role: str, index: int) -> dict[str, int] | None:
    """What this process divided its devices into, once the runtime has done it."""
    module: Any = sys.modules.get("tensorflow.python.eager.context")
    if module is None or not getattr(module.context(), "_initialized", False):
        return None
    found = {}
    for kind in ("CPU", "GPU"):
        names = [str(one.name) for one in tf.config.list_logical_devices(kind)]
        # In a cluster those of all workers are listed.
        mine = f"/job:{role}/replica:0/task:{index}/"
        found[kind] = sum("/job:" not in name or mine in name for name in names)
    return found


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
    """Record what a dataset says of itself."""
    tell_input(about_dataset(dataset), name)


@guarded("fact tf_dataset")
def about_dataset(dataset: Any) -> dict[str, Any]:
    """What a dataset says of itself and of what it was made of."""
    chain = list(_chain(dataset))
    kinds = [type(one).__name__ for one in chain]
    inner = chain[0] if chain else dataset
    shuffle: Any = next((one for one in chain if "Shuffle" in type(one).__name__), None)
    batch = next((one for one in chain if hasattr(one, "_batch_size")), None)
    return {
        "cardinality": _cardinality(dataset),
        "shuffle_buffer": _number(getattr(shuffle, "_buffer_size", None)),
        "files": _files(chain),
        "auto_shard": _auto_shard(inner),
        "batch": _number(batch._batch_size) if batch is not None else None,
        "made_by": kinds[:12],
    }


@guarded("fact tf_dataset")
def tell_input(about: dict[str, Any] | None, name: str = "train") -> None:
    """What a dataset said of itself when it was begun."""
    if about:
        _tell(recorder.current(), "tf_dataset", {"name": name, **about})


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
    """How many files are read, where what reads them or what gives their names says so."""
    for one, source in zip(chain, [*chain[1:], None], strict=True):
        names = getattr(one, "_filenames", None)
        if names is None and "Interleave" in type(one).__name__ and _of_names(source):
            names = source
        if hasattr(names, "cardinality"):
            return _cardinality(names)
        shape = getattr(names, "shape", None)
        if names is not None and shape is not None and shape.rank is not None:
            return int(shape.num_elements() or 0)
    return None


def _of_names(dataset: Any) -> bool:
    """Whether a dataset gives one text after the other."""
    spec = getattr(dataset, "element_spec", None)
    name = getattr(getattr(spec, "dtype", None), "name", None)
    return name == "string" and getattr(getattr(spec, "shape", None), "rank", None) == 0


def _auto_shard(dataset: Any) -> str | None:
    options = dataset.options() if hasattr(dataset, "options") else None
    policy = getattr(getattr(options, "experimental_distribute", None), "auto_shard_policy", None)
    return str(getattr(policy, "name", policy)) if policy is not None else None


@guarded("fact tf_epoch")
def tell_epoch(epoch: int, batches: int) -> None:
    """How many batches an epoch had on this worker."""
    _tell(recorder.current(), "tf_epoch", {"epoch": epoch, "elements": batches})


def filled(batch: Any) -> int:
    """1 for a batch with samples, 0 for one that stands in for a worker whose data has ended."""
    tf = loaded()
    try:
        parts = tf.nest.flatten(batch, expand_composites=True)
        return int(not parts or any(one.shape.rank == 0 or one.shape[0] != 0 for one in parts))
    except Exception:
        return 1  # what has no shape is no tensor's batch


# Reductions


def tell_reduction(value: str, reduced: str, replicas: int, mean: bool | None) -> None:
    """By which operation a value of the replicas was reduced, and whether each is a mean."""
    _tell(
        recorder.current(),
        "reduction",
        {
            "value": value or "value",
            "per_replica": True,
            "reduced": reduced,
            "replicas": replicas,
            "mean": mean,
        },
    )


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
