"""The input of a loop that knows nothing of it: which datasets it trains from, and its waits.

Every iterator is timed outside of ``fit``; what was waited for is known when the next thing
happens. An update was made of what was read before it; what an iterator gave until its end without
an update was an evaluation.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.tensorflow._facts import about_dataset, filled, tell_epoch, tell_input
from tracekit.adapters.tensorflow._guard import failed, guarded
from tracekit.adapters.tensorflow._loop import Loop, active, type_of
from tracekit.recorder import clock

__all__ = ["watch_inputs"]

_DATASETS = (
    ("tensorflow.python.data.ops.dataset_ops", "DatasetV2"),
    ("tensorflow.python.distribute.input_lib", "DistributedDataset"),
    ("tensorflow.python.distribute.input_lib", "DistributedDatasetsFromFunction"),
)
_MOST = 256
"""Waits that are kept until it is known what they were for; of more the last ones."""


def watch_inputs(loop: Loop) -> list[Callable[[], None]]:
    """Time what is iterated over from now on; returns what undoes it."""
    inputs = _Inputs(loop)
    for module, name in _DATASETS:
        owner = getattr(sys.modules.get(module), name, None)
        if isinstance(owner, type):
            try:
                inputs.undo.append(patch(owner, "__iter__", inputs.begins))
            except Exception as error:
                failed(f"{name}.__iter__", error)
    loop.updated = (*loop.updated, inputs.updated)
    return [inputs.end]


class _Source:
    """A dataset that is iterated over, again and again."""

    def __init__(self, dataset: Any) -> None:
        self.about = about_dataset(dataset)
        self.trains = False
        self.epoch = 0
        self.batches = 0


class _Inputs:
    """The iterators of one rank."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.undo: list[Callable[[], None]] = []
        self._sources: Watch[_Source] = Watch()
        self._iterators: Watch[_Source] = Watch()
        self._classes: set[type] = set()
        self._held: list[tuple[_Source, int, int]] = []
        self._inside = threading.local()

    def end(self) -> None:
        """Time nothing any more."""
        self.loop.updated = tuple(one for one in self.loop.updated if one != self.updated)
        self._held.clear()
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()

    def begins(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``iter(dataset)``; what a distributed dataset makes inside of it is its own affair."""

        @functools.wraps(original)
        def __iter__(dataset: Any, /) -> Any:
            if getattr(self._inside, "now", False) or not self._counts():
                return original(dataset)
            self._inside.now = True
            try:
                iterator = original(dataset)
            finally:
                self._inside.now = False
            self._begun(dataset, iterator)
            return iterator

        return __iter__

    def _counts(self) -> bool:
        loop = self.loop
        if loop.in_fit or loop.inside or recorder.pause.on or active() is not loop:
            return False
        return bool(sys.modules["tensorflow"].executing_eagerly())

    @guarded("iterator")
    def _begun(self, dataset: Any, iterator: Any) -> None:
        source = self._sources.get(dataset)
        if source is None:
            source = _Source(dataset)
            self._sources.add(dataset, source)
        source.batches = 0
        self._iterators.add(iterator, source)
        owner = type(iterator)
        if owner in self._classes:
            return
        self._classes.add(owner)
        for name in ("__next__", "get_next"):
            if hasattr(owner, name):
                self.undo.append(patch(owner, name, self._next))

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def following(iterator: Any, /, *args: Any, **kwargs: Any) -> Any:
            source = self._iterators.get(iterator)
            if source is None or getattr(self._inside, "now", False) or not self._counts():
                return original(iterator, *args, **kwargs)
            self._inside.now = True
            began = clock()
            try:
                batch = original(iterator, *args, **kwargs)
            except StopIteration:
                self._ended(source)
                raise
            finally:
                self._inside.now = False
            self._waited(source, began, batch)
            return batch

        return following

    @guarded("iterator")
    def _waited(self, source: _Source, began: int, batch: Any) -> None:
        self._held.append((source, began, clock()))
        del self._held[:-_MOST]
        source.batches += filled(batch)

    @guarded("iterator")
    def _ended(self, source: _Source) -> None:
        if source.trains:
            tell_epoch(source.epoch, source.batches)
            source.epoch += 1
        elif self.loop.in_step:
            for one, began, ended in self._held:
                if one is source:
                    type_of("eval_wait", "eval").complete(began, ended)
        source.batches = 0
        self._held = [held for held in self._held if held[0] is not source]

    @guarded("iterator")
    def updated(self) -> None:
        """An update was made of what was read before it."""
        held, self._held = self._held, []
        for source, began, ended in held:
            if not source.trains:
                source.trains = True
                tell_input(source.about)
            type_of("data_wait", "data").complete(began, ended)
