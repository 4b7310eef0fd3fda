"""Every call that Python makes on a process group, seen at the class ``ProcessGroup``.

That is below the functions of ``torch.distributed``: names that were imported before, deprecated
names that call new ones and libraries that keep a process group all come through here, once.
Calls that are made of several (objects, a blocking send) are recorded as the one they are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters.torch._calls import (
    Call,
    Calls,
    HostCall,
    calls_of,
    collective_cost,
    here,
    later,
    watch_works,
)
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._group import Group
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.adapters.torch._patch import patch

__all__ = ["size_of", "watch_collectives"]

_METHODS = {
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "all_to_all_single": "all_to_all",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "monitored_barrier": "monitored_barrier",
    "recv": "recv",
    "recv_anysource": "recv",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "scatter": "scatter",
    "send": "send",
}
"""What the methods of ``ProcessGroup`` are, under all names that versions of PyTorch gave them."""
_ROOTED = ("broadcast", "gather", "reduce", "scatter")
_ONE_SIDED = ("all_reduce", "broadcast", "reduce", "send", "recv")
_WITHOUT_TENSORS = ("barrier", "monitored_barrier")
_PAIRED = ("recv", "send")


@dataclass(frozen=True)
class _Function:
    """A function that is made of several calls: where it takes its group and its root or peer."""

    op: str
    group_at: int
    peer: str = ""
    peer_at: int = 0

    def peer_in(self, group: Group, args: Sequence[Any], kwargs: dict[str, Any]) -> int | None:
        """The root or peer as a rank of its group; None where none is given."""
        inside = kwargs.get(f"group_{self.peer}")
        if inside is not None:
            return int(inside)
        rank = _argument(args, kwargs, self.peer, self.peer_at) if self.peer else None
        return None if rank is None else group.ranks.index(int(rank))


_FUNCTIONS = {
    "all_gather_object": _Function("all_gather_object", 2),
    "broadcast_object_list": _Function("broadcast_object_list", 2, "src", 1),
    "gather_object": _Function("gather_object", 3, "dst", 2),
    "scatter_object_list": _Function("scatter_object_list", 3, "src", 2),
    "recv": _Function("recv", 2, "src", 1),
    "recv_object_list": _Function("recv", 2, "src", 1),
    "send": _Function("send", 2, "dst", 1),
    "send_object_list": _Function("send", 2, "dst", 1),
}
"""They exchange pickled objects, or send or receive and return when that is done."""


def watch_collectives() -> list[Callable[[], None]]:
    """Record the calls of all process groups; returns what undoes it."""
    if not dist.is_available() or not hasattr(dist, "ProcessGroup"):
        return []
    undo = watch_works()
    known = vars(dist.ProcessGroup)
    for method, op in _METHODS.items():
        if method in known:
            undo.append(patch(dist.ProcessGroup, method, functools.partial(_traced, op, method)))
    if "_start_coalescing" in known and "_end_coalescing" in known:
        undo.append(patch(dist.ProcessGroup, "_start_coalescing", _traced_start))
        undo.append(patch(dist.ProcessGroup, "_end_coalescing", _traced_end))
    for name in _FUNCTIONS:
        for module in (dist.distributed_c10d, dist):
            if callable(getattr(module, name, None)):
                undo.append(patch(module, name, functools.partial(_composed, name)))
    _tell_cost()
    return undo


@guarded("cost of a call")
def _tell_cost() -> None:
    if dist.is_initialized():
        cost = collective_cost(dist.distributed_c10d._get_default_group())
        recorder.fact("cost", {"call_ns": cost})


def size_of(value: Any) -> int:
    """The bytes of a tensor, or of all tensors in a list of whatever depth."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 0


def _first(value: Any) -> Any:
    """The first tensor in a list of whatever depth, or None."""
    while isinstance(value, (list, tuple)):
        if not value:
            return None
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _carried(op: str, args: Sequence[Any], size: int) -> int:
    """The bytes of a call: of the larger side of it, on one rank."""
    if op in _WITHOUT_TENSORS or not args:
        return 0
    if op in _ONE_SIDED:
        return size_of(args[0])
    if op == "gather":
        return size * size_of(args[1])
    if op == "scatter":
        return size * size_of(args[0])
    return max(size_of(args[0]), size_of(args[1]))


# The methods of ProcessGroup


def _traced(op: str, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
    begin = _begin_message if op in _PAIRED else _BEGIN.get(op, _begin)
    message = op in _PAIRED

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        inside = here.inside
        if inside == "whole":
            _count_inner(op, args)
            return original(self, *args, **kwargs)
        try:
            begun, blocking = begin(self, op, method, args, kwargs)
        except Exception as error:
            failed("collectives", error)
            return original(self, *args, **kwargs)
        try:
            work = original(self, *args, **kwargs)
        except BaseException:
            _fail(begun)
            raise
        try:
            if message:
                calls_of(self).group.paired()
            if blocking and not inside and work is not None:
                if here.call is not None:
                    here.call.done()  # nobody has waited for the one before
                here.work, here.call = work, begun
            elif inside:
                here.together = (*here.together, begun)
            elif work is None:
                begun.done()
            else:
                later(begun, work)
        except Exception as error:
            failed("collectives", error)
        return work

    return call


_Begun = tuple[Call, bool]
"""A call, and whether it returns when it is over."""


def _begin_all_reduce(
    process_group: Any, op: str, method: str, args: Sequence[Any], kwargs: Any
) -> _Begun:
    """The most frequent one, with nothing to ask but its bytes."""
    tensors = args[0]
    tensor = tensors[0] if type(tensors) is list and len(tensors) == 1 else _first(tensors)
    if tensor is tensors or len(tensors) != 1:
        nbytes = size_of(tensors)
    else:
        nbytes = tensor.numel() * tensor.element_size()
    blocking = _blocks(args, kwargs)
    return calls_of(process_group).begin(op, tensor, nbytes, blocking), blocking


def _begin(process_group: Any, op: str, method: str, args: Sequence[Any], kwargs: Any) -> _Begun:
    calls = calls_of(process_group)
    group = calls.group
    if op == "monitored_barrier":
        return calls.begin(op, None, 0, True, seq=group.pair(-1, -1)), True
    tensor = _first(args[0]) if args else None
    if tensor is None and len(args) > 1:
        tensor = _first(args[1])
    blocking, root = _blocks(args, kwargs), None
    if op in _ROOTED:
        options = kwargs.get("opts") or args[-1]
        root = int(getattr(options, "rootRank", kwargs.get("root", 0)))
    nbytes = _carried(op, args, group.size)
    return calls.begin(op, tensor, nbytes, blocking, root), blocking


_BEGIN = {"all_reduce": _begin_all_reduce}


def _begin_message(
    process_group: Any, op: str, method: str, args: Sequence[Any], kwargs: Any
) -> _Begun:
    peer = None if method == "recv_anysource" else int(args[1])
    tag = int(args[2] if len(args) > 2 else kwargs.get("tag", 0))
    calls, tensors = calls_of(process_group), args[0]
    return _message(calls, op, _first(tensors), size_of(tensors), False, peer, tag, op), False


def _message(
    calls: Calls,
    op: str,
    tensor: Any,
    nbytes: int,
    blocking: bool,
    peer: int | None,
    tag: int,
    name: str,
) -> Call:
    """A send or receive begins; ``peer`` is a rank of the group, None for anyone."""
    group, mine = calls.group, dist.get_rank()
    other = -1 if peer is None else group.ranks[peer]
    seq = group.pair(*((mine, other) if op == "send" else (other, mine)), tag)
    group.apart()
    return calls.begin(op, tensor, nbytes, blocking, peer, seq, name)


def _blocks(args: Sequence[Any], kwargs: Any) -> bool:
    """Whether the call returns when it is over; its options say so, the last argument."""
    options = (kwargs.get("opts") if kwargs else None) or (args[-1] if args else None)
    try:
        return options.asyncOp is False  # type: ignore[union-attr]
    except AttributeError:
        return _caller_blocks()


def _caller_blocks() -> bool:
    """The same where options do not say it: the function of torch.distributed that calls knows."""
    caller = sys._getframe(4)
    if caller.f_globals.get("__name__") != dist.distributed_c10d.__name__:
        return False
    known = caller.f_locals
    return known.get("async_op", known.get("async_ops")) is False


@guarded("collectives")
def _fail(call: Call) -> None:
    call.done(error=True)


@guarded("collectives")
def _count_inner(op: str, args: Sequence[Any]) -> None:
    here.inner_bytes += _carried(op, args, 1)


# Several calls that the backend makes one of


class _All:
    """Calls that are over together."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    def wait_begins(self) -> None:
        for call in self._calls[:1]:
            call.wait_begins()

    def waited(self, error: bool = False) -> None:
        for call in self._calls[:1]:
            call.waited(error)
        for call in self._calls[1:]:
            call.done(error)

    def done(self, error: bool = False) -> None:
        for call in self._calls:
            call.done(error)

    def gone(self) -> None:
        for call in self._calls:
            call.gone()


def _traced_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _start_coalescing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not here.inside:
            here.inside, here.together = "together", ()
        return original(self, *args, **kwargs)

    return _start_coalescing


def _traced_end(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _end_coalescing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        calls, here.together = here.together, ()
        if here.inside == "together":
            here.inside = ""
        work = original(self, *args, **kwargs)
        if calls:
            _end_together(calls, work)
        return work

    return _end_coalescing


@guarded("collectives")
def _end_together(calls: Sequence[Call], work: Any) -> None:
    if work is None:
        _All(calls).done()
    else:
        later(_All(calls), work)


# Functions that are made of several calls


class _Composed:
    """One of these functions under way."""

    def __init__(self, call: Call, message_in: Group | None) -> None:
        self.call = call
        self._message_in = message_in

    @guarded("collectives")
    def ends(self, error: bool) -> None:
        if self._message_in is not None:
            self._message_in.paired()
        if isinstance(self.call, HostCall) and here.inner_bytes:
            self.call.carries(here.inner_bytes)
        self.call.waited(error)


def _composed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.inside or is_compiling():
            return original(*args, **kwargs)
        composed = _compose(name, args, kwargs)
        if composed is None:
            return original(*args, **kwargs)
        here.inside, here.inner_bytes = "whole", 0
        try:
            result = original(*args, **kwargs)
        except BaseException:
            here.inside = ""
            composed.ends(error=True)
            raise
        here.inside = ""
        composed.ends(error=False)
        return result

    return call


@guarded("collectives")
def _compose(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> _Composed | None:
    function = _FUNCTIONS[name]
    process_group = _argument(args, kwargs, "group", function.group_at)
    if process_group is None:
        process_group = dist.distributed_c10d._get_default_group()
    if dist.get_rank(process_group) < 0:
        return None
    calls = calls_of(process_group)
    peer = function.peer_in(calls.group, args, kwargs)
    if function.op not in _PAIRED:
        root = 0 if peer is None and function.peer else peer
        return _Composed(calls.begin(name, None, 0, True, root), None)
    tag = int(_argument(args, kwargs, "tag", 3) or 0) if name == function.op else 0
    payload = args[0] if args else kwargs.get("tensor")
    tensor = payload if isinstance(payload, torch.Tensor) else None
    message = _message(calls, function.op, tensor, size_of(payload), True, peer, tag, name)
    return _Composed(message, calls.group)


def _argument(args: Sequence[Any], kwargs: dict[str, Any], name: str, place: int) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)
