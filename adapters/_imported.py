"""Calls back when a module has been imported by whoever imports it first, and imports nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tracekit import recorder

__all__ = ["when_imported"]

_IMPORTLIB = "<frozen importlib._bootstrap_external>"


def when_imported(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` once the module is there, at once where it is; returns what ends it.

    The importing thread calls it, right after the module's own code. What it raises is said and
    not passed on.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _call(callback, name)
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)
    return finder.leave


class _Finder:
    """Finds one module as the finders behind it do, and has its loader call back.

    It leaves with the first import that succeeds; loader and module are then as without it.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def leave(self) -> None:
        """Find nothing any more."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for the module; None for every other module."""
        if name != self._name:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder != self else None
            if spec is not None:
                self._have_called_back(spec.loader)
                return spec
        return None

    def _have_called_back(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.leave()
            _call(self._callback, self._name)

        # Python leaves functions of this file out of the traceback of an import that fails.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB)
        with contextlib.suppress(AttributeError):
            loader.exec_module = exec_module


def _call(callback: Callable[[], None], name: str) -> None:
    try:
        callback()
    except Exception as error:
        recorder.say_once(f"{name} is not traced by itself: {type(error).__name__}: {error}")
