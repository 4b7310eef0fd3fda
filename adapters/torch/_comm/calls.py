"""One call of a process group as one span: when the rank came, when it went on, when it was over.

A call that returns when it is over, blocks its thread: one span on the thread's lane. Any other
runs on the lane of its group, from the call to its end, and the time that a thread really stood
in ``Work.wait`` is a span ``wait`` with the same key. On a device the thread only launches: there
the borders are marks on the current stream, before the call and behind its wait.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch

from tracekit import recorder
from tracekit.adapters._patch import Watch
from tracekit.adapters.torch._comm.group import Group, group_of
from tracekit.adapters.torch._device import DeviceClock, DevicePhase, Mark
from tracekit.adapters.torch._loop import device_clock_of
from tracekit.recorder import CollectiveType, Token, pause

__all__ = [
    "Call",
    "Calls",
    "HostCall",
    "HostFlight",
    "calls_by_id",
    "calls_of",
    "collective_cost",
    "here",
    "insiders",
]


class Call(Protocol):
    """A call under way."""

    def wait_begins(self) -> None:
        """A thread waits for it."""
        ...

    def waited(self, error: bool = False) -> None:
        """The thread goes on."""
        ...

    def done(self, error: bool = False) -> None:
        """It is over, or failed before it began."""
        ...

    def gone(self) -> None:
        """Nobody has its work any more."""
        ...


class _Here(threading.local):
    """What this thread is in."""

    inside = ""
    """"whole" in a call that is recorded as one, whatever it is made of; "together" between the
    start and the end of coalescing."""
    inner_bytes = 0
    """What the calls inside a whole carry."""
    together: tuple[Call, ...] = ()
    """The calls since the start of coalescing."""

    def enter(self, inside: str) -> None:
        """This thread's calls belong to something larger from now on."""
        self.inside = inside
        insiders.append(inside)

    def leave(self) -> None:
        """They stand for themselves again."""
        self.inside = ""
        insiders.pop()


here = _Here()
insiders: list[str] = []
"""What the threads of the process are inside of; empty nearly always, and cheaper to ask."""


class Types:
    """The span types of one operation of a group."""

    def __init__(self, group: Group, op: str, dtype: Any, peer: int | None, name: str):
        text = None if dtype is None else str(dtype).removeprefix("torch.")
        collective = group.collective(op, text, peer)
        counts = op not in ("send", "recv")

        def made(called: str, lane: str | None, counted: bool) -> CollectiveType:
            type_ = recorder.span_type(called, "comm", collective, lane, counts=counted)
            assert isinstance(type_, CollectiveType)
            return type_

        self.blocking = made(name, None, counts)
        self.beside = made(name, group.lane, counts)
        self.wait = made("wait", None, False)
        self.lane = group.lane
        self.device = DevicePhase(name, "comm", collective)
        self.device_wait = DevicePhase("wait", "comm", collective)


class HostCall:
    """A call that blocks its thread until it is over."""

    __slots__ = ("token", "type")

    def __init__(self, type_: CollectiveType, seq: int, nbytes: int) -> None:
        self.type = type_
        self.token: Token = type_.begin(seq, nbytes)

    def wait_begins(self) -> None:
        pass

    def waited(self, error: bool = False) -> None:
        self.type.end(self.token, error=error)

    done = gone = waited

    def carries(self, nbytes: int) -> None:
        """Its bytes are known only now."""
        self.type.amend(self.token, nbytes=nbytes)


class HostFlight:
    """A call that goes on while its thread does something else."""

    __slots__ = ("nbytes", "seq", "tells", "token", "types", "waiting")

    def __init__(self, types: Types, seq: int, nbytes: int) -> None:
        self.types, self.seq, self.nbytes = types, seq, nbytes
        self.token: Token = types.beside.begin(seq, nbytes)
        self.waiting: Token = []
        self.tells = False  # whether its future says when it is over; else the wait's end does

    def wait_begins(self) -> None:
        self.waiting = self.types.wait.begin(self.seq, self.nbytes)

    def waited(self, error: bool = False) -> None:
        self.types.wait.end(self.waiting, error=error)
        if not self.tells or error:
            self.types.beside.end(self.token, error=error)

    def done(self, error: bool = False) -> None:
        self.types.beside.end(self.token, error=error)

    def gone(self) -> None:
        if not self.tells:
            self.done()


class Unrecorded(HostCall):
    """A call while recording pauses: a post-mortem still knows it, and that is all."""

    __slots__ = ()

    def waited(self, error: bool = False) -> None:
        self.type.drop(self.token)

    done = gone = waited


class DeviceCall:
    """A call on a device; blocking or not, its stream says when it came and went."""

    __slots__ = ("blocking", "clock", "nbytes", "over", "seq", "start", "types", "waiting")

    def __init__(
        self, clock: DeviceClock, types: Types, seq: int, nbytes: int, blocking: bool
    ) -> None:
        self.clock, self.types, self.seq, self.nbytes = clock, types, seq, nbytes
        self.blocking = blocking
        self.start: Mark | None = clock.mark()
        self.waiting: Mark | None = None
        self.over = False

    def wait_begins(self) -> None:
        if not self.blocking:
            self.waiting = self.clock.mark()

    def waited(self, error: bool = False) -> None:
        if not self.blocking and not error:
            self.clock.span(
                self.types.device_wait, self.waiting, self.clock.mark(), self.seq, self.nbytes
            )
        self.done(error)

    def done(self, error: bool = False) -> None:
        if self.over or error:
            return
        self.over = True
        lane = None if self.blocking else self.types.lane
        end = self.clock.mark()
        self.clock.span(self.types.device, self.start, end, self.seq, self.nbytes, lane=lane)

    def gone(self) -> None:
        """Its end is not known, since no stream waits for it."""


class Calls:
    """The calls of one process group."""

    def __init__(self, process_group: Any) -> None:
        self.group = group_of(process_group)
        self._types: dict[tuple[Any, ...], Types] = {}
        self.frequent: dict[str, dict[Any, Types]] = {}
        """By operation and dtype, of the calls without a root on tensors of the host: what was
        made once is made often."""

    def begin(
        self,
        op: str,
        tensor: Any,
        nbytes: int,
        blocking: bool,
        root: int | None = None,
        seq: int = 0,
        name: str = "",
    ) -> Call:
        """A call begins; ``root`` is a rank of the group, ``tensor`` tells type and device."""
        if tensor is None:
            dtype, device = None, None
        else:
            dtype, device = tensor.dtype, None if tensor.is_cpu else tensor.device
        types = self._types.get((op, dtype, root, name))
        if types is None:
            types = self._types[op, dtype, root, name] = self._new_types(op, dtype, root, name)
        if not seq:
            seq = self.group.next()
        if pause.on:
            return Unrecorded(types.blocking, seq, nbytes)
        if device is not None:
            clock = device_clock_of(device)
            if clock is not None:
                return DeviceCall(clock, types, seq, nbytes, blocking)
        if root is None:
            self.frequent.setdefault(op, {})[dtype] = types
        if not blocking:
            return HostFlight(types, seq, nbytes)
        return HostCall(types.blocking, seq, nbytes)

    def _new_types(self, op: str, dtype: Any, root: int | None, name: str) -> Types:
        self.group.tell()
        return Types(self.group, op, dtype, root, name or op)


_calls: Watch[Calls] = Watch()
calls_by_id = _calls.values
"""The ``Calls`` of process groups by ``id()``, for who cannot pay for a call."""


def calls_of(process_group: Any) -> Calls:
    """The ``Calls`` of a process group, which is held weakly."""
    return _calls.of(process_group, Calls)


def collective_cost(process_group: Any) -> int:
    """Nanoseconds that it costs to record one call of a group; counts as no call of it."""
    calls, tensor = calls_of(process_group), torch.empty(1)

    def one() -> None:
        calls.begin("all_reduce", tensor, 4, True, seq=calls.group.last() + 1).waited()

    return recorder.cost_of(one)
