"""Every call that Python makes on a process group, seen at the class ``ProcessGroup``.

That is below the functions of ``torch.distributed``: names that were imported before, deprecated
names that call new ones and libraries that keep a process group all come through here, once.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.torch._comm.calls import (
    Call,
    Calls,
    HostFlight,
    calls_by_id,
    calls_of,
    collective_cost,
    here,
    insiders,
)
from tracekit.adapters.torch._comm.works import end_pending, later, now, watch_works
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.recorder import Recorder, pause, threads

__all__ = ["MESSAGES", "message", "size_of", "watch_collectives"]

local = threads.local


@threads.follow
def _use(current: threading.local) -> None:
    global local
    local = current


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
MESSAGES = ("recv", "send")


def watch_collectives() -> list[Callable[[], None]]:
    """Record the calls of all process groups; returns what undoes it."""
    if not dist.is_available() or not hasattr(dist, "ProcessGroup"):
        return []
    undo = watch_works()
    known = vars(dist.ProcessGroup)
    for method, op in _METHODS.items():
        if method in known:
            make = functools.partial(_traced, op, method)
            if method in _FREQUENT:
                make = functools.partial(_quickly, op, _FREQUENT[method], make)
            undo.append(patch(dist.ProcessGroup, method, make))
    if "_start_coalescing" in known and "_end_coalescing" in known:
        undo.append(patch(dist.ProcessGroup, "_start_coalescing", _traced_start))
        undo.append(patch(dist.ProcessGroup, "_end_coalescing", _traced_end))
    _tell_cost()
    return undo


_told: WeakSet[Recorder] = WeakSet()


@guarded("cost of a call")
def _tell_cost() -> None:
    """Measure once a run what it costs to record a call."""
    rec = recorder.current()
    if rec is not None and rec not in _told and dist.is_initialized():
        _told.add(rec)
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
    begin = _begin_message if op in MESSAGES else _begin
    message = op in MESSAGES

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
                now(begun, work)
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


def _quickly(
    op: str, listed: bool, make: Callable[..., Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    """The frequent calls on tensors of the host: of one tensor, ``listed`` or the larger of two.

    All that is done for one is here: each function more that is entered costs as much as what it
    does. Whatever is new or odd goes the general way.
    """
    general = make(original)

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        types = None
        try:
            state = local.state
            if listed:
                (tensor,) = args[0]
                nbytes = tensor.nbytes
            else:
                tensor = args[0]
                nbytes = max(tensor.nbytes, args[1].nbytes)
            if state.pending is None and tensor.is_cpu and not (insiders or pause.on or kwargs):
                goes_on = args[-1].asyncOp
                calls = calls_by_id[id(self)]
                types = calls.frequent[op][tensor.dtype]
                group = calls.group
                seq = group.seen = self._get_sequence_number_for_group() + 1 - group.beside
                if goes_on:
                    flight = HostFlight(types, seq, nbytes)
                else:
                    type_ = types.blocking
                    token = type_.begin(seq, nbytes)
        except Exception:
            types = None
        if types is None:
            return general(self, *args, **kwargs)
        try:
            work = original(self, *args)
        except BaseException:
            if goes_on:
                _fail(flight)
            else:
                end_pending(type_, token, error=True)
            raise
        if work is None:
            _finish(flight) if goes_on else end_pending(type_, token)
        elif goes_on:
            later(flight, work)
        else:
            state.pending = work, type_, token
        return work

    return call


_FREQUENT = {
    "allreduce": True,
    "all_gather_single": False,
    "reduce_scatter_single": False,
    "_allgather_base": False,
    "_reduce_scatter_base": False,
}
"""Methods that are made quick, and whether their tensor comes in a list."""


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


def _begin_message(
    process_group: Any, op: str, method: str, args: Sequence[Any], kwargs: Any
) -> _Begun:
    peer = None if method == "recv_anysource" else int(args[1])
    tag = int(args[2] if len(args) > 2 else kwargs.get("tag", 0))
    calls, tensors = calls_of(process_group), args[0]
    return message(calls, op, _first(tensors), size_of(tensors), False, peer, tag, op), False


def message(
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
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame.f_globals.get("__name__") == dist.distributed_c10d.__name__:
            known = frame.f_locals
            return known.get("async_op", known.get("async_ops")) is False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


_FRAMES = 4
"""Our own between a function of torch.distributed and what asks about it, and one more."""


@guarded("collectives")
def _fail(call: Call) -> None:
    call.done(error=True)


@guarded("collectives")
def _finish(call: Call) -> None:
    call.done()


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
        result = original(self, *args, **kwargs)
        if not here.inside:
            here.enter("together")
            here.together = ()
        return result

    return _start_coalescing


def _traced_end(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _end_coalescing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        calls, here.together = here.together, ()
        if here.inside == "together":
            here.leave()
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
