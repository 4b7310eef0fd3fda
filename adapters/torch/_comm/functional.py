"""Functional collectives: the operators of ``torch.ops._c10d_functional``, eager or compiled.

They go from Python straight to C++ and pass no ``ProcessGroup`` of Python. What is called is the
``_op`` of an operator's packet or overload. That is replaced, not the operator: the compiler keeps
seeing the object it knows. Nothing is recorded while a graph is traced.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tracekit.adapters._patch import patch
from tracekit.adapters.torch._comm.calls import Call, calls_of, here
from tracekit.adapters.torch._comm.collectives import size_of
from tracekit.adapters.torch._guard import guarded

__all__ = ["watch_functional"]

_OPERATORS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
}
_resolve: Callable[[str], Any] = getattr(dist.distributed_c10d, "_resolve_process_group", str)
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
_REAL = (torch.Tensor, torch.nn.Parameter)
_MOST_WAITED = 4096

_waited: OrderedDict[int, Call] = OrderedDict()
"""The calls under way, by where their results lie: that is how PyTorch finds them too."""


def watch_functional() -> list[Callable[[], None]]:
    """Record the functional collectives; returns what undoes it."""
    undo: list[Callable[[], None]] = []
    for namespace in _NAMESPACES:
        for name, op in {**_OPERATORS, "wait_tensor": ""}.items():
            make = functools.partial(_traced, op) if op else _traced_wait
            undo += [patch(callee, "_op", make) for callee in _callees(namespace, name)]
    return undo


def _callees(namespace: str, name: str) -> Iterator[Any]:
    """A packet and its overloads; nothing where this version of PyTorch has none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is not None and hasattr(packet, "_op"):
        yield packet
        for overload in packet.overloads():
            yield getattr(packet, overload)


def _traced(op: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.inside or not _is_real(args):
            return original(*args, **kwargs)
        begun = _begin(op, args, kwargs)
        if begun is None:
            return original(*args, **kwargs)
        here.enter("whole")
        try:
            result = original(*args, **kwargs)
        except BaseException:
            here.leave()
            _fail(begun)
            raise
        here.leave()
        _go_on(begun, result)
        return result

    return call


def _is_real(args: Sequence[Any]) -> bool:
    """Whether this runs; no graph is being made of it."""
    first = args[0] if args else None
    if isinstance(first, (list, tuple)):
        first = first[0] if first else None
    return type(first) in _REAL and not torch._C._len_torch_dispatch_stack()


@guarded("functional collectives")
def _begin(op: str, args: Sequence[Any], kwargs: Any) -> Call | None:
    named = kwargs.get("group_name", args[-1])
    calls = calls_of(_resolve(named) if isinstance(named, str) else named)
    size = calls.group.size
    first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
    nbytes = size_of(args[0]) * (size if op == "all_gather" else 1)
    root = int(args[1]) if op == "broadcast" else None
    return calls.begin(op, first, nbytes, False, root)


@guarded("functional collectives")
def _go_on(call: Call, result: Any) -> None:
    for tensor in result if isinstance(result, (list, tuple)) else [result]:
        place = tensor.data_ptr()
        if place:
            _waited[place] = call
    while len(_waited) > _MOST_WAITED:
        _waited.popitem(last=False)


@guarded("functional collectives")
def _fail(call: Call) -> None:
    call.done(error=True)


def _traced_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def wait_tensor(tensor: Any) -> Any:
        call = _awaited(tensor) if _waited and _is_real((tensor,)) else None
        if call is None:
            return original(tensor)
        try:
            result = original(tensor)
        except BaseException:
            _end(call, error=True)
            raise
        _end(call, error=False)
        return result

    return wait_tensor


@guarded("functional collectives")
def _awaited(tensor: Any) -> Call | None:
    call = _waited.pop(tensor.data_ptr(), None)
    if call is not None:
        call.wait_begins()
    return call


@guarded("functional collectives")
def _end(call: Call, error: bool) -> None:
    call.waited(error)
