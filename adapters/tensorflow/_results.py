"""What a training step of several replicas returns, and whether anybody puts it together.

``strategy.run`` gives each replica's own value. Numbers that it returned in a step, and that were
neither reduced nor gathered nor looked at one by one in the updates that follow, are told as never
reduced; of those that were, how, and whether each was a mean already. Where replicas reduce numbers
by themselves, in the step, nobody knows which of those it returns are among them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tracekit.adapters._patch import patch
from tracekit.adapters.tensorflow._facts import tell_reduction
from tracekit.adapters.tensorflow._guard import guarded
from tracekit.adapters.tensorflow._loop import Loop, active

__all__ = ["reduced", "returned", "watch_looks", "watch_results"]

_CONTEXT = "tensorflow.python.distribute.distribute_lib"
_UPDATES = 5
"""For how many updates nobody must have reduced a value."""
_DEEPEST = 64
"""How many operations behind a value are looked through for another one."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A number of each replica, returned by a step."""

    name: str
    replicas: int
    mean: bool | None
    operations: tuple[Any, ...]
    """Those of the graph that made it, one a replica of this process; none outside of graphs."""


class _Results:
    """The values of one rank that nobody has reduced yet."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.waiting: list[_Value] = []
        self.quiet = 0
        self.inside = False
        """Whether replicas put numbers together by themselves."""
        self._trace: object = None

    def add(self, values: list[_Value]) -> None:
        """What a step returned; what an earlier one did is over with."""
        trace = self.loop.outermost_trace
        if trace is not self._trace or not values or not values[0].operations:
            self.waiting = []
        self._trace = trace
        self.waiting = [*self.waiting, *values]

    @guarded("results of a step")
    def updated(self) -> None:
        """An update is done."""
        self.quiet = self.quiet + 1 if self.waiting else 0
        if self.quiet >= _UPDATES and not self.inside:
            for one in self.waiting:
                tell_reduction(one.name, "none", one.replicas, one.mean)
            self.waiting = []


_results: WeakKeyDictionary[Loop, _Results] = WeakKeyDictionary()


def watch_results(loop: Loop) -> list[Callable[[], None]]:
    """Look at what steps return from now on; returns what undoes it."""
    if loop in _results:
        return []
    results = _results[loop] = _Results(loop)
    loop.updated = (*loop.updated, results.updated)

    def leave() -> None:
        loop.updated = tuple(one for one in loop.updated if one != results.updated)
        _results.pop(loop, None)

    owner = getattr(sys.modules.get(_CONTEXT), "ReplicaContextBase", None)
    if not isinstance(owner, type):
        return [leave]
    return [leave, patch(owner, "all_reduce", _all_reduce)]


def _all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def all_reduce(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        _reduced_inside(args[1] if len(args) > 1 else kwargs.get("value"))
        return original(self, *args, **kwargs)

    return all_reduce


@guarded("results of a step")
def _reduced_inside(value: Any) -> None:
    results = _here()
    if results is not None and all(map(_is_number, sys.modules["tensorflow"].nest.flatten(value))):
        results.inside = True


def _here() -> _Results | None:
    loop = active()
    return _results.get(loop) if loop is not None else None


@guarded("results of a step")
def returned(strategy: Any, function: Any, result: Any) -> None:
    """``strategy.run`` has returned something."""
    results = _here()
    replicas = int(strategy.num_replicas_in_sync)
    if results is None or replicas < 2 or not results.loop.trains:
        return
    flat = sys.modules["tensorflow"].nest.flatten(result)
    values = []
    for number, one in enumerate(flat):
        parts = _parts(one)
        if not all(_is_number(part) for part in parts):
            continue
        operations = tuple(part.op for part in parts if _symbolic(part))
        values.append(
            _Value(
                f"{_name(function)}()" + (f"[{number}]" if len(flat) > 1 else ""),
                replicas,
                _is_mean(operations[0]) if operations else None,
                operations,
            )
        )
    results.add(values)


@guarded("fact reduction")
def reduced(strategy: Any, value: Any, how: Any) -> None:
    """Somebody puts values of replicas together; ``how`` is None where each is looked at."""
    results = _here()
    replicas = int(strategy.num_replicas_in_sync)
    parts = _parts(value)
    operations = [part.op for part in parts if _symbolic(part)]
    told = str(getattr(how, "value", how)).rpartition(".")[2].upper()
    found: list[_Value] = []
    if results is not None and results.waiting:
        found = _made_of(results.waiting, operations) if operations else results.waiting
        results.waiting = [one for one in results.waiting if one not in found]
        results.quiet = 0
    if how is None or not parts or not all(_is_number(part) for part in parts):
        return
    if len(found) == 1:
        mean = _is_mean(operations[0]) if operations else found[0].mean
        tell_reduction(found[0].name, told, replicas, mean)
    elif operations:
        name = str(operations[0].name).rpartition("/")[2]
        tell_reduction(name, told, replicas, _is_mean(operations[0]))


def _made_of(waiting: list[_Value], operations: list[Any]) -> list[_Value]:
    """The values that these operations have to do with."""
    behind = {id(one) for one in _behind(operations)}
    return [one for one in waiting if any(id(made) in behind for made in one.operations)]


def _behind(operations: list[Any]) -> Iterator[Any]:
    ahead, seen = list(operations), 0
    while ahead and seen < _DEEPEST:
        one = ahead.pop(0)
        seen += 1
        yield one
        ahead += [tensor.op for tensor in one.inputs]


def _parts(value: Any) -> tuple[Any, ...]:
    """The values of this process's replicas."""
    held = getattr(value, "values", None)
    return held if isinstance(held, tuple) else (value,)


def _symbolic(value: Any) -> bool:
    return hasattr(value, "op") and not hasattr(value, "numpy")


def _is_number(value: Any) -> bool:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return getattr(shape, "rank", None) == 0 and bool(getattr(dtype, "is_floating", False))


def _is_mean(operation: Any) -> bool:
    """Whether a tensor of a graph is a mean that nothing divided afterwards."""
    for _ in range(8):
        if operation.type in ("Identity", "Cast", "Reshape", "Squeeze") and operation.inputs:
            operation = operation.inputs[0].op
            continue
        return bool(operation.type == "Mean")
    return False


def _name(function: Any) -> str:
    """The name of what ran on the replicas."""
    inner = getattr(function, "python_function", function)
    return str(getattr(inner, "__name__", "step"))[:40]


def watch_looks(original: Callable[..., Any]) -> Callable[..., Any]:
    """``experimental_local_results``: somebody looks at each replica's value."""

    @functools.wraps(original)
    def experimental_local_results(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        reduced(self, args[0] if args else kwargs.get("value"), None)
        return original(self, *args, **kwargs)

    return experimental_local_results
