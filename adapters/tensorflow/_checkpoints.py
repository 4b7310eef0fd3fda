"""Checkpoints: the time in which the training stands still for one, and what it is made of."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import Maker, patch
from tracekit.adapters.tensorflow._facts import tell_checkpoint
from tracekit.adapters.tensorflow._guard import failed
from tracekit.adapters.tensorflow._loop import active, type_of

__all__ = ["watch_checkpoints"]

_SAVES = (
    # module, class, method; the outermost call is recorded
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", "save"),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", "write"),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", "restore"),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", "read"),
    ("tensorflow.python.checkpoint.checkpoint_management", "CheckpointManager", "save"),
    ("tf_keras.src.engine.training", "Model", "save"),
    ("tf_keras.src.engine.training", "Model", "save_weights"),
    ("tf_keras.src.engine.training", "Model", "load_weights"),
    ("tf_keras.src.callbacks", "BackupAndRestore", "on_train_begin"),
    ("tf_keras.src.callbacks", "BackupAndRestore", "_backup"),
    ("keras.src.engine.training", "Model", "save"),
    ("keras.src.engine.training", "Model", "save_weights"),
    ("keras.src.engine.training", "Model", "load_weights"),
    ("keras.src.models.model", "Model", "save"),
    ("keras.src.models.model", "Model", "save_weights"),
    ("keras.src.models.model", "Model", "load_weights"),
    ("keras.src.callbacks.backup_and_restore", "BackupAndRestore", "on_train_begin"),
    ("keras.src.callbacks.backup_and_restore", "BackupAndRestore", "_save_model"),
)
_inside = threading.local()


def watch_checkpoints() -> list[Callable[[], None]]:
    """Record what saves and loads, of all that is loaded; returns what undoes it."""
    undo = []
    for module, name, method in _SAVES:
        owner = getattr(sys.modules.get(module), name, None)
        if not isinstance(owner, type) or method not in vars(owner):
            continue
        try:
            undo.append(patch(owner, method, _recorded(f"{name}.{method}")))
        except Exception as error:
            failed(f"{name}.{method}", error)
    return undo


def _recorded(name: str) -> Maker:
    name = name.replace("._", ".").replace(".on_train_begin", ".restore")
    saves = name.endswith(("save", "write", "save_weights", "backup", "save_model"))

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if active() is None or getattr(_inside, "one", False) or recorder.pause.on:
                return original(self, *args, **kwargs)
            _inside.one = True
            try:
                with type_of(name, "checkpoint"):
                    result = original(self, *args, **kwargs)
            finally:
                _inside.one = False
            if saves:
                tell_checkpoint(self)
            return result

        return call

    return make
