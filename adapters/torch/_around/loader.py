"""The wait for the next batch."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Protocol

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.torch._around.batches import Batches
from tracekit.adapters.torch._loop import Loop

__all__ = ["watch_loader", "watch_unknown_loaders"]

_END = object()


class _Watched:
    """One loader; ``live`` until it is no longer traced, also for iterators under way."""

    def __init__(self, loader: Any, loop: Loop) -> None:
        self.loop = loop
        self.live = True
        self.batches = Batches(loader, loop)

    def stop(self) -> None:
        self.live = False
        self.batches.stop()


_loaders: Watch[_Watched] = Watch()


def watch_loader(loader: Any, loop: Loop) -> list[Callable[[], None]]:
    """Record the waits for a loader's batches; returns what undoes it.

    The loader stays the object it is: its class's ``__iter__`` looks it up.
    """
    if _loaders.get(loader) is not None:
        return []
    try:
        undo = [patch(type(loader), "__iter__", _traced_iter)]
    except (TypeError, AttributeError):
        recorder.say_once(
            f"PyTorch adapter: the waits for a {type(loader).__name__} cannot be seen; write"
            " `with tracekit.span('data_wait', kind='data'):` around what fetches a batch"
        )
        return []
    watched = _Watched(loader, loop)
    return [*undo, _loaders.add(loader, watched), watched.stop]


def _traced_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any, /) -> Any:
        watched = _loaders.get(self)
        if watched is None and _judge is not None:
            evaluating = _judge.meet(self)
            if evaluating is not None:
                inner = evaluating.wait_for(original, self, evaluates=True)
                trains = functools.partial(_judge.trains_from, weakref.ref(self))
                return _EvaluationIterator(evaluating, inner, trains)
            watched = _loaders.get(self)
        if watched is None or watched.loop.thread != get_ident() or watched.loop.waits:
            return original(self)  # also where a class calls the __iter__ of the one above it
        watched.batches.begins(self)
        return _TracedIterator(watched, watched.loop.wait_for(original, self))

    return __iter__


class Judge(Protocol):
    """Decides about loaders that nobody watches."""

    def meet(self, loader: Any) -> Loop | None:
        """Watch a loader where the training is about to iterate over it.

        Returns the loop where an evaluation is.
        """
        ...

    def trains_from(self, loader: weakref.ref[Any]) -> None:
        """It was no evaluation: steps were made meanwhile."""
        ...


_judge: Judge | None = None


def watch_unknown_loaders(kind: type, judge: Judge) -> list[Callable[[], None]]:
    """Ask ``judge`` about each loader of a class that is iterated over and that nobody watches."""
    global _judge
    _judge = judge

    def stop() -> None:
        global _judge
        _judge = None

    return [patch(kind, "__iter__", _traced_iter), stop]


class _EvaluationIterator:
    """An iterator whose ``next`` is a wait of an evaluation; everything else is the inner one's.

    Some train with their model in evaluation mode; a new step shows it.
    """

    def __init__(self, loop: Loop, inner: Iterator[Any], trains: Callable[[], None]) -> None:
        self._loop = loop
        self._inner = inner
        self._trains: Callable[[], None] | None = trains
        self._step = loop.recorder.step

    def __iter__(self) -> _EvaluationIterator:
        return self

    def __next__(self) -> Any:
        if self._trains is not None and self._step != self._loop.recorder.step:
            trains, self._trains = self._trains, None
            trains()
        evaluates = self._trains is not None
        batch = self._loop.wait_for(next, self._inner, _END, evaluates=evaluates)
        if batch is _END:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TracedIterator:
    """An iterator whose ``next`` is a data wait; everything else is the inner one's."""

    def __init__(self, watched: _Watched, inner: Iterator[Any]) -> None:
        self._watched = watched
        self._inner = inner

    def __iter__(self) -> _TracedIterator:
        return self

    def __next__(self) -> Any:
        if not self._watched.live:
            return next(self._inner)
        batch = self._watched.loop.wait_for(next, self._inner, _END)
        if batch is _END:
            raise StopIteration
        batches = self._watched.batches
        batches.taken += 1
        if batches.size is None:
            batches.first(batch)
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
