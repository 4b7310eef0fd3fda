"""Processes that ``multiprocessing`` spawns are traced as the one that spawns them.

Forked ones have what is needed in their memory. A spawned one is a new interpreter, and is told
by the data with which ``multiprocessing`` prepares it, before its module is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit import recorder
from tracekit.adapters._imported import when_imported

__all__ = ["tell_children"]

_PACKAGE = str(Path(__file__).resolve().parents[3])
_IN_CHILD = """
import sys
sys.path.append({package!r})
try:
    from tracekit.cli._run.recording import trace_imports
    trace_imports()
except Exception:
    pass
finally:
    sys.path.remove({package!r})
"""
_WORKERS = "torch.utils.data."
"""Where the functions of processes are defined that load data and never train."""


class _Told:
    """Runs a few lines where it is unpickled, which need nothing that may be missing there."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        return exec, (_IN_CHILD.format(package=_PACKAGE), {})


def tell_children() -> None:
    """Let spawned processes trace what they make; nothing is recorded before they do."""
    when_imported("multiprocessing.spawn", _patch)


def _patch() -> None:
    spawn = sys.modules["multiprocessing.spawn"]
    original: Callable[[str], dict[str, Any]] = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        if not _loads_data(sys._getframe(1).f_locals.get("process_obj")):
            data["tracekit"] = _Told()  # a key that nobody asks for
        return data

    def put_back() -> None:
        if vars(spawn).get("get_preparation_data") is get_preparation_data:
            spawn.get_preparation_data = original  # type: ignore[attr-defined]

    spawn.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]
    recorder.when_stopped(put_back)


def _loads_data(process: Any) -> bool:
    target = getattr(process, "_target", None)
    return str(getattr(target, "__module__", "")).startswith(_WORKERS)
