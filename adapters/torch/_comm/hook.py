"""One span for each gradient bucket: a DDP communication hook that changes nothing.

DDP takes one hook, once, and never gives it back. So ours is a dispatcher: it does what PyTorch
does without a hook, to the bit; it takes in a hook that the user registers later; and after
detach() it only passes through.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join

from tracekit import recorder
from tracekit.adapters._patch import Watch, patch
from tracekit.adapters.torch._comm.calls import here
from tracekit.adapters.torch._comm.exit import settle_at_exit
from tracekit.adapters.torch._ddp import Replica
from tracekit.adapters.torch._device import DeviceClock, DevicePhase, Mark
from tracekit.adapters.torch._guard import guarded
from tracekit.recorder import Token

__all__ = ["Buckets", "Dispatcher", "dispatch"]

Hook = Callable[[Any, Any], Any]

_dispatchers: Watch[Dispatcher] = Watch()  # by DDP object
_of_reducer: dict[int, weakref.ref[Dispatcher]] = {}


class Buckets:
    """The spans of one DDP object's buckets: ready, then done, on the lane of the group."""

    def __init__(self, replica: Replica, device: DeviceClock | None) -> None:
        group = replica.group
        collective = group.collective("all_reduce", replica.dtype)
        self._type = recorder.span_type("all_reduce", "comm", collective, group.lane)
        self._device = device
        self._device_phase = DevicePhase("all_reduce", "comm", collective)
        self._lane = group.lane
        self._group = group

    def begin(self, nbytes: int) -> Token | tuple[Mark | None, int, int]:
        """A bucket is ready."""
        seq = self._group.next()
        if self._device is not None:
            return self._device.mark(), seq, nbytes
        return self._type.begin(seq, nbytes)

    def end(self, token: Any, error: bool = False) -> None:
        """The bucket is reduced; on whatever thread the future calls."""
        if self._device is not None:
            start, seq, nbytes = token
            self._device.span(
                self._device_phase, start, self._device.mark(), seq, nbytes, lane=self._lane
            )
        else:
            self._type.end(token, error=error)


class Dispatcher:
    """The hook that DDP gets. It holds neither the model nor DDP: C++ would keep both for ever."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._process_group = replica.process_group
        self._size = replica.group.size
        self._joined: Any = None  # under Join: what counts the ranks by which to divide
        self.buckets: Buckets | None = None
        self.hook: tuple[Any, Hook] | None = None

    def __call__(self, _: object, bucket: Any) -> Any:
        token = self._begin(bucket)
        if token is None:
            return self._reduce(None, bucket)
        outer, here.inside = here.inside, "whole"  # a bucket is one span
        try:
            return self._reduce(token, bucket)
        finally:
            here.inside = outer

    def _reduce(self, token: Any, bucket: Any) -> Any:
        if self.hook is not None:
            state, hook = self.hook
            try:
                future = hook(state, bucket)
            except BaseException:
                self._end(token, error=True)
                raise
            self._end_with(token, future)
            return future
        try:
            buffer = bucket.buffer()
            self._divide(buffer)
            future = self._process_group.allreduce([buffer]).get_future()
        except BaseException:
            self._end(token, error=True)
            raise

        def done(reduced: Any) -> Any:
            try:
                value = reduced.value()[0]
            except BaseException:  # the reduction failed: DDP hears it from the future
                self._end(token, error=True)
                raise
            self._end(token)
            return value

        return future.then(done)

    def _divide(self, buffer: torch.Tensor) -> None:
        """Scale as the reducer does: dense gradients by the reciprocal, sparse ones by division."""
        divisor = self._divisor()
        if buffer.is_sparse:
            buffer.div_(divisor)
        else:
            buffer.mul_(1.0 / divisor)

    def _divisor(self) -> int:
        work = self._joined
        if work is not None:
            work.wait()
            return int(work.get_future().value()[0].item())
        return self._size

    @guarded("Join")
    def joins(self, work: Any) -> None:
        """A forward under ``Join`` counts the ranks that still have inputs."""
        self._joined = work if self._replica.divisor_varies() else None

    @guarded("bucket spans")
    def _begin(self, bucket: Any) -> Any:
        if self.buckets is None or recorder.pause.on:
            return None
        buffer = bucket.buffer()
        return self.buckets, self.buckets.begin(buffer.numel() * buffer.element_size())

    @guarded("bucket spans")
    def _end(self, token: Any, error: bool = False) -> None:
        if token is not None:
            buckets, inner = token
            buckets.end(inner, error)

    @guarded("bucket spans")
    def _end_with(self, token: Any, future: Any) -> None:
        if token is not None:
            future.add_done_callback(lambda _: self._end(token))


def dispatch(replica: Replica, device: DeviceClock | None) -> list[Callable[[], None]]:
    """Record the buckets of a DDP object; returns what makes the hook a pass-through again.

    Nothing where it cannot be done without a change; the reason is said.
    """
    ddp = replica.ddp
    if ddp is None:
        return []
    dispatcher = _dispatchers.get(ddp)
    if dispatcher is None:
        reason = _obstacle(replica)
        if reason is None:
            dispatcher = Dispatcher(replica)
            try:
                _register(ddp, dispatcher)
            except Exception as error:
                reason = str(error).splitlines()[0]
        if reason is not None:
            recorder.say_once(
                f"PyTorch adapter: no spans of single buckets ({reason});"
                " one all_reduce a backward is recorded instead"
            )
            return []
    assert dispatcher is not None
    taken = dispatcher
    taken.buckets = Buckets(replica, device)

    def pass_through() -> None:
        taken.buckets = None

    return [pass_through]


def _obstacle(replica: Replica) -> str | None:
    """Why a hook of ours would not be invisible; None when nothing stands against it."""
    if replica.has_hook():
        return "a communication hook is registered already"
    if replica.divisor_varies():
        return "Join divides by a number that varies"
    size = replica.group.size
    if size & (size - 1) and getattr(replica.ddp, "gradient_as_bucket_view", False):
        # The reducer divides gradients in place that are views of the bucket, and multiplies the
        # others by the reciprocal; a hook cannot tell which were which. For a power of two both
        # give the same bits.
        return f"gradient_as_bucket_view with {size} ranks"
    if not hasattr(Join, "notify_join_context") or not hasattr(dist, "_register_comm_hook"):
        return "this version of PyTorch has other hooks"
    return None


def _register(ddp: Any, dispatcher: Dispatcher) -> None:
    settle_at_exit()
    dist._register_comm_hook(ddp.reducer, None, dispatcher)  # type: ignore[attr-defined]
    reducer = id(ddp.reducer)
    ends = [
        patch(dist, "_register_comm_hook", _hand_over),
        patch(Join, "notify_join_context", _listen),
    ]
    if hasattr(dist, "_register_builtin_comm_hook"):
        ends.append(patch(dist, "_register_builtin_comm_hook", _hand_over_builtin))
    _of_reducer[reducer] = weakref.ref(dispatcher)

    def gone() -> None:
        """The DDP object is dead: nothing needs to pass through any more."""
        _of_reducer.pop(reducer, None)
        for end in ends:
            end()

    _dispatchers.add(ddp, dispatcher, gone)


def _taking(reducer: Any) -> Dispatcher | None:
    """The dispatcher of a reducer, if it can still take a hook in."""
    reference = _of_reducer.get(id(reducer))
    dispatcher = reference() if reference is not None else None
    return dispatcher if dispatcher is not None and dispatcher.hook is None else None


def _hand_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that comes later goes to the dispatcher; a second one is PyTorch's to refuse."""

    def _register_comm_hook(reducer: Any, state: Any, comm_hook: Hook) -> Any:
        dispatcher = _taking(reducer)
        if dispatcher is None:
            return original(reducer, state, comm_hook)
        dispatcher.hook = (state, comm_hook)
        return None

    return _register_comm_hook


def _hand_over_builtin(original: Callable[..., Any]) -> Callable[..., Any]:
    """The hooks that are written in C++ have twins in Python that give the same bits."""

    def _register_builtin_comm_hook(reducer: Any, comm_hook_type: Any) -> Any:
        dispatcher = _taking(reducer)
        if dispatcher is None:
            return original(reducer, comm_hook_type)
        name = str(comm_hook_type).rpartition(".")[2].lower()
        hook = getattr(default_hooks, f"{name}_hook", None)
        if hook is None:
            return original(reducer, comm_hook_type)
        dispatcher.hook = (dispatcher._process_group, hook)
        return None

    return _register_builtin_comm_hook


def _listen(original: Callable[..., Any]) -> Callable[..., Any]:
    """Under ``Join`` the number of ranks with inputs is the result of this call's work."""

    def notify_join_context(joinable: Any) -> Any:
        work = original(joinable)
        dispatcher = _dispatchers.get(joinable)
        if dispatcher is not None:
            dispatcher.joins(work)
        return work

    return notify_join_context
