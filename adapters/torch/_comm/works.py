"""Works: who waits for one, or takes its future, ends the call that it belongs to.

A call that returns when it is over is its thread's ``pending`` one until its work has been waited
for, as the function of torch.distributed does at once. All others are under way until somebody
waits for them, their future says that they are over, or nobody has their work any more.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from tracekit.adapters._patch import patch
from tracekit.adapters.torch._comm.calls import Call, HostFlight, here, insiders
from tracekit.adapters.torch._comm.exit import settle_at_exit
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.recorder import Token, threads

__all__ = ["end_pending", "later", "now", "watch_works"]


local = threads.local


@threads.follow
def _use(current: threading.local) -> None:
    global local
    local = current


class _Of(weakref.ref[Any]):
    """A work that is under way, held weakly."""

    __slots__ = ("key",)
    key: int


_flights: dict[int, tuple[Call, _Of]] = {}
"""The calls under way, by the ``id()`` of their work."""


def later(call: Call, work: Any) -> None:
    """The call goes on: who waits for its work ends it, or its future, or that nobody has it."""
    try:
        of = _Of(work, _gone)
        of.key = id(work)
        _flights[of.key] = call, of
    except Exception as error:
        failed("collectives", error)


@guarded("collectives")
def _gone(of: _Of) -> None:
    call, known = _flights.get(of.key, (None, None))
    if call is not None and known is of:
        del _flights[of.key]
        call.gone()


def now(call: Call, work: Any) -> None:
    """The call returns when it is over: the next wait for its work is its end."""
    state = threads.thread()
    if state.pending is not None:
        end_pending(*state.pending[1:])  # nobody has waited for the one before
    state.pending = work, call, None


@guarded("collectives")
def end_pending(call: Any, token: Token | None, error: bool = False) -> None:
    """End a call that returns when it is over: a span type with a token, or a ``Call``."""
    if token is None:
        call.waited(error)
    else:
        call.end(token, error=error)


def watch_works() -> list[Callable[[], None]]:
    """Record the waits for works; returns what undoes it."""
    settle_at_exit()
    return [patch(dist.Work, "wait", _traced_wait), patch(dist.Work, "get_future", _traced_future)]


def _traced_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            state = local.state
            pending = state.pending
        except AttributeError:  # a thread that has recorded nothing
            pending = None
        if pending is None or pending[0] is not self:
            return _wait_for_flight(original, self, args, kwargs)
        state.pending = None
        _, call, token = pending
        try:
            result = original(self, *args, **kwargs) if args or kwargs else original(self)
        except BaseException:
            end_pending(call, token, error=True)
            raise
        try:
            if token is None:
                call.waited()
            else:
                call.end(token)
        except Exception as error:
            failed("collectives", error)
        return result

    return wait


def _wait_for_flight(
    original: Callable[..., Any], work: Any, args: tuple[Any, ...], kwargs: Any
) -> Any:
    flight = None if insiders and here.inside else _flights.pop(id(work), None)
    if flight is None:
        return original(work, *args, **kwargs)
    call = flight[0]
    try:
        call.wait_begins()
    except Exception as error:
        failed("collectives", error)
    try:
        result = original(work, *args, **kwargs)
    except BaseException:
        _fail_wait(call)
        raise
    try:
        call.waited()
    except Exception as error:
        failed("collectives", error)
    return result


@guarded("collectives")
def _fail_wait(call: Call) -> None:
    call.waited(error=True)


def _traced_future(original: Callable[..., Any]) -> Callable[..., Any]:
    """Who takes the future need not wait for the work: then the future says when it is over.

    Nobody else is told by it: a callback on a thread of the backend costs more than a span.
    """

    @functools.wraps(original)
    def get_future(self: Any, /) -> Any:
        future = original(self)
        call, _ = _flights.get(id(self), (None, None))
        if isinstance(call, HostFlight) and not call.tells:
            _listen(call, future)
        return future

    return get_future


@guarded("collectives")
def _listen(call: HostFlight, future: Any) -> None:
    call.tells = True
    future.add_done_callback(functools.partial(_is_done, call))


def _is_done(call: Call, *_: object) -> None:
    try:
        call.done()
    except Exception as error:
        failed("collectives", error)
