"""A strategy in a loop of the user's own: what is run, reduced and gathered by it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.tensorflow._attach import asked, attach, bind
from tracekit.adapters.tensorflow._calls import calls_of
from tracekit.adapters.tensorflow._facts import tell_dataset, tell_process, tell_strategy
from tracekit.adapters.tensorflow._guard import guarded, require
from tracekit.adapters.tensorflow._handle import Handle
from tracekit.adapters.tensorflow._loop import active, type_of
from tracekit.adapters.tensorflow._results import reduced, returned, watch_looks, watch_results
from tracekit.adapters.tensorflow._windows import settings_of
from tracekit.errors import UsageError

__all__ = ["trace_strategy", "watch_strategy"]

_watched: Watch[bool] = Watch()


def trace_strategy(
    strategy: Any,
    *,
    windows: bool | Sequence[int] = False,
    check_gradients: bool = False,
) -> Handle:
    """Trace a loop of one's own that trains with a strategy, before its first step.

    Args:
        strategy: a ``tf.distribute.Strategy``, or what makes one without arguments, as
            ``tf.distribute.MultiWorkerMirroredStrategy``: then a worker that never joins shows.
        windows: True for a profile of 4 steps in every 100, False for none, or (every, length).
        check_gradients: count what is not finite in the gradients before they are reduced.

    Returns the handle, whose ``strategy`` is the strategy. Raises ``MissingDependency`` without
    TensorFlow and ``UsageError`` for what is neither; the training is never disturbed.
    """
    require()
    asked()
    chosen = settings_of(windows)
    if isinstance(strategy, type) or not hasattr(strategy, "extended"):
        if not callable(strategy):
            raise UsageError(f"trace_strategy() needs a strategy, not {type(strategy).__name__}")
        strategy = _made(strategy)
        if not hasattr(strategy, "extended"):
            raise UsageError(f"what was called made a {type(strategy).__name__}, no strategy")
    handle = Handle(strategy=strategy)
    _attach(handle, strategy, chosen, check_gradients)
    return handle


def _made(make: Callable[[], Any]) -> Any:
    """Make a strategy, which waits until all workers have come."""
    rec = recorder.current_or_start()
    if rec is None:
        return make()
    tell_process(rec)
    start = calls_of(rec).call("start", "barrier", "strategy start", keep=False)
    with type_of("strategy start", "init"), start:
        return make()


@guarded("trace_strategy")
def _attach(
    handle: Handle, strategy: Any, windows: tuple[int, int] | None, check_gradients: bool
) -> None:
    bind(strategy)
    loop = attach(handle, windows, check_gradients)
    if loop is None:
        return
    handle.undo += watch_strategy(strategy)
    tell_strategy(loop.recorder, strategy)
    handle.undo.insert(0, loop.leave)


def watch_strategy(strategy: Any) -> list[Callable[[], None]]:
    """Record what a strategy is asked for; returns what undoes it."""
    undo = [_watched.add(strategy, True)]
    loop = active()
    if loop is not None:
        undo += watch_results(loop)
    for name, make in _METHODS.items():
        if hasattr(strategy, name):
            undo.append(patch(type(strategy), name, make))
        else:
            recorder.say_once(f"TensorFlow: this version has no strategy.{name}")
    return undo


def _eager() -> bool:
    return bool(sys.modules["tensorflow"].executing_eagerly())


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        loop = active() if _watched.get(self) else None
        if loop is None:
            return original(self, *args, **kwargs)
        if _eager():
            result = loop.run("strategy.run", None, original, (self, *args), kwargs)
        else:
            result = original(self, *args, **kwargs)
        if not loop.in_fit:
            returned(self, args[0] if args else kwargs.get("fn"), result)
        return result

    return run


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _watched.get(self):
            return original(self, *args, **kwargs)
        _told(self, args, kwargs)
        if not _eager():
            return original(self, *args, **kwargs)
        with _together("all_reduce"):
            return original(self, *args, **kwargs)

    return reduce


def _told(strategy: Any, args: Any, kwargs: Any) -> None:
    loop = active()
    if loop is not None and not loop.in_fit:  # Keras reduces in its own way
        how = args[0] if args else kwargs.get("reduce_op")
        reduced(strategy, args[1] if len(args) > 1 else kwargs.get("value"), how)


def _gather(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gather(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _watched.get(self):
            return original(self, *args, **kwargs)
        reduced(self, args[0] if args else kwargs.get("value"), None)
        if not _eager():
            return original(self, *args, **kwargs)
        with _together("all_gather"):
            return original(self, *args, **kwargs)

    return gather


@contextmanager
def _together(op: str) -> Iterator[None]:
    """A reduction that all workers make outside of a graph: its beginning is an arrival.

    In a window the profile has it; the host's word would count it twice.
    """
    loop = active()
    if loop is None or recorder.pause.on:
        yield
        return
    profiled = loop.windows is not None and loop.windows.is_open
    with calls_of(loop.recorder).call("host", op, op, keep=not profiled):
        yield


class _Scope:
    """``strategy.scope()`` as it is, and a span of it."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope
        self._span: Any = None

    def __enter__(self) -> Any:
        entered = self._scope.__enter__()
        loop = active()
        if loop is not None and not loop.in_step and not loop.in_fit and not loop.inside:
            self._span = type_of("strategy.scope", "init")
            self._span.__enter__()
        return entered

    def __exit__(self, *error: Any) -> Any:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(*error)
        return self._scope.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)


def _scope(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scope(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        return _Scope(made) if _watched.get(self) and _eager() else made

    return scope


def _distribute(original: Callable[..., Any]) -> Callable[..., Any]:
    """What is told before it is tried: files that are too few are an error of TensorFlow's."""

    @functools.wraps(original)
    def experimental_distribute_dataset(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if _watched.get(self) and _eager():
            loop = active()
            tell_dataset(dataset, "validation" if loop is not None and loop.evaluates else "train")
        return original(self, dataset, *args, **kwargs)

    return experimental_distribute_dataset


_METHODS = {
    "run": _run,
    "reduce": _reduce,
    "gather": _gather,
    "scope": _scope,
    "experimental_distribute_dataset": _distribute,
    "experimental_local_results": watch_looks,
}
