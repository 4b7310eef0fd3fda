"""A dataset in a loop of the user's own: the time in ``next`` of its iterators."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.tensorflow._attach import asked, attach
from tracekit.adapters.tensorflow._facts import filled, tell_dataset, tell_epoch
from tracekit.adapters.tensorflow._guard import failed, guarded, require
from tracekit.adapters.tensorflow._handle import Handle
from tracekit.adapters.tensorflow._loop import active, type_of
from tracekit.adapters.tensorflow._strategy import watch_strategy
from tracekit.errors import UsageError

__all__ = ["trace_dataset"]

_WAIT = "data_wait"
_EVAL_WAIT = "eval_wait"


class _Counts:
    """How often a dataset was begun, and what its iterators gave."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.classes: set[type] = set()
        self.epoch = 0
        self.batches = 0
        self.inside = False


_datasets: Watch[_Counts] = Watch()
_iterators: Watch[_Counts] = Watch()


def trace_dataset(dataset: Any) -> Handle:
    """Record the time in ``next`` of a dataset's iterators, outside of graphs.

    ``dataset`` is a ``tf.data.Dataset``, or what ``experimental_distribute_dataset`` made of one;
    use the same object afterwards. Raises ``MissingDependency`` without TensorFlow, ``UsageError``
    for what cannot be iterated over.
    """
    require()
    if not hasattr(type(dataset), "__iter__") or not hasattr(dataset, "element_spec"):
        raise UsageError(f"trace_dataset() needs a dataset, not {type(dataset).__name__}")
    asked()
    handle = Handle(dataset=dataset)
    _attach(handle, dataset)
    return handle


@guarded("trace_dataset")
def _attach(handle: Handle, dataset: Any) -> None:
    recorder.current_or_start()
    loop = attach(handle, None, False)
    if loop is None:
        return
    tell_dataset(dataset)
    strategy = getattr(dataset, "_strategy", None)
    if strategy is not None:  # next() of a distributed iterator may reduce: no wait for data
        handle.undo += watch_strategy(strategy)
    handle.undo.append(_datasets.add(dataset, _Counts(handle)))
    handle.undo.append(patch(type(dataset), "__iter__", _iter))
    handle.undo.insert(0, loop.leave)


def _iter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any, /) -> Any:
        iterator = original(self)
        counts = _datasets.get(self)
        if counts is not None:
            _begun(counts, iterator)
        return iterator

    return __iter__


@guarded("iterator")
def _begun(counts: _Counts, iterator: Iterator[Any]) -> None:
    if not sys.modules["tensorflow"].executing_eagerly():
        return
    _ended(counts)
    _iterators.add(iterator, counts)
    owner = type(iterator)
    if owner in counts.classes:
        return
    counts.classes.add(owner)
    for name in ("__next__", "get_next"):
        if hasattr(owner, name):
            try:
                counts.handle.undo.append(patch(owner, name, _next))
            except (AttributeError, TypeError) as error:
                failed(f"iterator.{name}", error)


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def following(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        counts = _iterators.get(self)
        loop = active()
        if counts is None or counts.inside or recorder.pause.on:
            return original(self, *args, **kwargs)
        if loop is not None and loop.inside:
            return original(self, *args, **kwargs)
        evaluates = loop is not None and loop.evaluates
        counts.inside = True
        try:
            with type_of(*((_EVAL_WAIT, "eval") if evaluates else (_WAIT, "data"))):
                result = original(self, *args, **kwargs)
        except StopIteration:
            _ended(counts)
            raise
        finally:
            counts.inside = False
        counts.batches += filled(result)
        return result

    return following


@guarded("epoch")
def _ended(counts: _Counts) -> None:
    batches, counts.batches = counts.batches, 0
    if batches:
        tell_epoch(counts.epoch, batches)
        counts.epoch += 1
