"""Functions of torch.distributed that are made of several calls, recorded as the one they are.

They exchange pickled objects, or send or receive and return when that is done. Imported by name
before they were watched they are recorded as the calls they are made of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tracekit.adapters._patch import patch
from tracekit.adapters.torch._comm.calls import Call, HostCall, calls_of, here
from tracekit.adapters.torch._comm.collectives import MESSAGES, message, size_of
from tracekit.adapters.torch._comm.group import Group
from tracekit.adapters.torch._compile import is_compiling
from tracekit.adapters.torch._guard import guarded

__all__ = ["watch_compositions"]


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


def watch_compositions() -> list[Callable[[], None]]:
    """Record these functions; returns what undoes it."""
    if not dist.is_available():
        return []
    return [
        patch(module, name, functools.partial(_composed, name))
        for name in _FUNCTIONS
        for module in (dist.distributed_c10d, dist)
        if callable(getattr(module, name, None))
    ]


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
        here.enter("whole")
        here.inner_bytes = 0
        try:
            result = original(*args, **kwargs)
        except BaseException:
            here.leave()
            composed.ends(error=True)
            raise
        here.leave()
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
    if function.op not in MESSAGES:
        root = 0 if peer is None and function.peer else peer
        return _Composed(calls.begin(name, None, 0, True, root), None)
    tag = int(_argument(args, kwargs, "tag", 3) or 0) if name == function.op else 0
    payload = args[0] if args else kwargs.get("tensor")
    tensor = payload if isinstance(payload, torch.Tensor) else None
    begun = message(calls, function.op, tensor, size_of(payload), True, peer, tag, name)
    return _Composed(begun, calls.group)


def _argument(args: Sequence[Any], kwargs: dict[str, Any], name: str, place: int) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)
