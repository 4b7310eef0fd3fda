"""The training loop of one thread: which phase it is in, which step and which micro-step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from sys import modules
from threading import get_ident
from typing import Any, Protocol

from torch import is_grad_enabled

from tracekit import recorder
from tracekit.adapters.torch._device import DeviceClock, DevicePhase
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.recorder import Here, Recorder, clock, pause

__all__ = [
    "BACKWARD",
    "EVAL",
    "FORWARD",
    "OPTIMIZER",
    "Loop",
    "Phase",
    "Synchronised",
    "device_clock_of",
    "loop_here",
    "loops",
]


SELDOM_NS = 500_000_000
"""The least time between two looks at what changes slowly."""


class Phase:
    """A phase of the training and its span types: on the host, and as the launch of device work.

    ``bit`` stands for it among those that a thread is in.
    """

    _made = count()

    def __init__(self, name: str, kind: str) -> None:
        self.bit = 1 << next(self._made)
        self.host = recorder.span_type(name, kind)
        self.launch = recorder.span_type(name, "launch")
        self.device = DevicePhase(name, kind)
        self.around = recorder.around(self.host)


DATA_WAIT = recorder.span_type("data_wait", "data")
_around_wait = recorder.around(DATA_WAIT)
EVAL_WAIT = recorder.span_type("data_wait", "eval")
FORWARD = Phase("forward", "forward")
EVAL = Phase("forward", "eval")
BACKWARD = Phase("backward", "backward")
OPTIMIZER = Phase("optimizer_step", "optimizer")


class Synchronised(Protocol):
    """What a backward has to tell: a replicated model whose gradients it may synchronise."""

    def backward_begins(self, here: Here) -> None:
        """A backward begins on the loop's thread, whose state ``here`` holds."""
        ...

    def backward_ends(self, error: bool) -> None:
        """It returns or raises; the span of the backward is still open."""
        ...


loops: dict[int, Loop] = {}
"""By the thread that a loop belongs to."""


def loop_here() -> Loop | None:
    """The loop of the calling thread, while one is traced."""
    return loops.get(get_ident())


def device_clock_of(device: Any) -> DeviceClock | None:
    """The clock of a device on which a traced model lives; also for the threads of its backward."""
    for loop in (loops.get(get_ident()), *loops.values()):
        if loop is not None and loop.device is not None and loop.device.serves(device):
            return loop.device
    return None


def _listed(calls: list[Callable[[], None]], call: Callable[[], None]) -> Callable[[], None]:
    """Add a function to those that are called; returns what takes it out again."""
    calls.append(call)

    def stop() -> None:
        if call in calls:
            calls.remove(call)

    return stop


class Loop:
    """Opens and closes the spans of one thread's training; several handles may share it.

    Nothing but the thread that it belongs to enters a phase.
    """

    def __init__(self, rec: Recorder, thread: int) -> None:
        pause.heeded = True
        self.recorder = rec
        self.thread = thread
        self.here = Here()
        self.users = 0
        self.device: DeviceClock | None = None
        self.synchronised: list[Synchronised] = []
        self.stepper: object = None  # whose return ends a step: the first traced optimizer
        self.told_loss: Callable[[tuple[Any, ...], Mapping[str, Any], Here], None] | None = None
        self.scaled: tuple[Callable[[], Any], float] | None = None  # a scaled loss, and by what
        self.clip_began = 0
        self.forwards = False  # whether a forward that trains was seen
        self.without_forward: Callable[[], None] | None = None  # called at an update when not
        self._updated: list[Callable[[], None]] = []
        self._seldom: list[Callable[[], None]] = []
        self._next_look = 0
        self._imported: list[Callable[[], None]] = []
        self._modules = 0
        self._shared: dict[Any, tuple[int, list[Callable[[], None]]]] = {}
        self.used = False
        """Whether a phase was seen: from then on the loop is its thread's."""
        self.step_open = False
        """Whether a step is open that was begun here."""
        self.open = 0
        """The bits of the phases that the thread is in."""
        self._waiting = False
        self._micro = 0
        self._accumulates = False
        self._backward_done = False

    @classmethod
    def join(cls, rec: Recorder) -> Loop:
        """The calling thread's loop, made when there is none."""
        thread = get_ident()
        loop = loops.get(thread)
        if loop is None or loop.recorder is not rec:
            loop = loops[thread] = cls(rec, thread)
        loop.users += 1
        return loop

    def leave(self) -> None:
        """Forget the loop when its last handle goes; the step that is open ends here."""
        self.users -= 1
        if not self.users:
            if loops.get(self.thread) is self:
                del loops[self.thread]
            self.stop_steps()

    def move_here(self) -> None:
        """Follow the training to the calling thread, as long as it has done nothing elsewhere."""
        thread = get_ident()
        if thread != self.thread and not self.used and thread not in loops:
            if loops.get(self.thread) is self:
                del loops[self.thread]
            self.thread = thread
            self.here = Here()
            loops[thread] = self

    def watch_updates(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call this after each update, while its step is open; returns what ends that."""
        return _listed(self._updated, call)

    def watch_seldom(self, call: Callable[[], None]) -> Callable[[], None]:
        """The same, but not more often than twice a second."""
        self._next_look = 0
        return _listed(self._seldom, call)

    def watch_imports(self, call: Callable[[], None]) -> Callable[[], None]:
        """The same, but only where modules were imported since the update before."""
        self._modules = 0
        return _listed(self._imported, call)

    def share(self, watch: Callable[[Loop], list[Callable[[], None]]]) -> list[Callable[[], None]]:
        """Attach what the thread needs once; it ends with the last handle that asked for it."""
        users, undo = self._shared.get(watch) or (0, watch(self))
        self._shared[watch] = users + 1, undo

        def end() -> None:
            users, undo = self._shared[watch]
            self._shared[watch] = users - 1, undo
            if users == 1:
                del self._shared[watch]
                for step in undo:
                    step()

        return [end]

    # Phases

    def run(
        self,
        phase: Phase,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the user's function as this phase; a phase inside itself is not recorded again."""
        bit = phase.bit
        if self.open & bit or pause.on or get_ident() != self.thread:
            return call(*args, **kwargs)
        self.used = True
        if self.device is not None:
            return self._launch(self.device, phase, call, args, kwargs)
        self.open |= bit
        try:
            return phase.around(self.here, call, args, kwargs)
        finally:
            self.open &= ~bit

    def _launch(
        self,
        device: DeviceClock,
        phase: Phase,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The same where the call only launches what an accelerator does."""
        mark = device.mark()
        self.open |= phase.bit
        try:
            with phase.launch:
                return call(*args, **kwargs)
        finally:
            device.span(phase.device, mark, device.mark())
            self.open &= ~phase.bit

    @contextmanager
    def inside(self, phase: Phase) -> Iterator[None]:
        """The same for a part of a call."""
        if self.open & phase.bit or pause.on or get_ident() != self.thread:
            yield
            return
        self.open |= phase.bit
        device = self.device
        mark = device.mark() if device is not None else None
        try:
            with phase.host if device is None else phase.launch:
                yield
        finally:
            if device is not None:
                device.span(phase.device, mark, device.mark())
            self.open &= ~phase.bit

    @property
    def waits(self) -> bool:
        """Whether the thread waits for a batch."""
        return self._waiting

    def wait_for(self, call: Callable[..., Any], *args: Any, evaluates: bool = False) -> Any:
        """Call a loader's function as data wait; where gradients are off it evaluates."""
        if self._waiting or get_ident() != self.thread:
            return call(*args)
        self.used = self._waiting = True
        try:
            if evaluates or not is_grad_enabled():
                with EVAL_WAIT:
                    return call(*args)
            if self._accumulates:
                self._data_begins()
            if pause.on:
                return call(*args)
            return _around_wait(self.here, call, args, {})
        finally:
            self._waiting = False

    def backward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a backward of this thread; those whom it concerns are told of begin and end."""
        if self.open & BACKWARD.bit:
            return call(*args, **kwargs)
        if pause.on:
            self._backward_done = True
            return call(*args, **kwargs)
        here = self.here
        try:
            if self.told_loss is not None:
                self.told_loss(args, kwargs, here)
        except Exception as error:
            failed("loss", error)
        for replica in self.synchronised:
            replica.backward_begins(here)
        return self.run(BACKWARD, self._backward, (call, args, kwargs), {})

    def _backward(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            result = call(*args, **kwargs)
        except BaseException:
            for replica in self.synchronised:
                replica.backward_ends(error=True)
            raise
        for replica in self.synchronised:
            replica.backward_ends(error=False)
        self._backward_done = True
        return result

    # Steps and micro-steps

    @guarded("data wait")
    def _data_begins(self) -> None:
        """A batch is waited for; after a backward the next micro-step begins.

        The first step of all begins with its forward: whether the user marks steps can show after
        the first batch only.
        """
        self._next_micro_step()

    def forward_begins(self) -> None:
        """A forward begins that is to be followed by a backward.

        A second one in a step shows that steps have micro-steps here.
        """
        self.forwards = True
        if not self.step_open:
            self._open_step()
        if self._backward_done or self._accumulates:
            self._next_micro_step()

    @guarded("forward")
    def accumulates(self) -> None:
        """The gradients of this forward are not synchronised: steps have micro-steps here."""
        if not self._accumulates:
            self._accumulates = True
            self.recorder.set_micro_step(self._micro)

    @guarded("pipeline")
    def takes_up(self, micro_step: int) -> None:
        """A pipeline's schedule goes on with this micro-batch of the step."""
        self.forwards = True
        self._open_step()
        self._accumulates = self._accumulates or micro_step > 0
        self._micro = micro_step
        if self._accumulates:
            self.recorder.set_micro_step(micro_step)

    @guarded("optimizer step")
    def optimizer_begins(self) -> None:
        """The optimizer updates the parameters; needless where ``forwards`` and ``step_open``."""
        if not self.forwards and self.without_forward is not None:
            self.without_forward()
        if not self.step_open:
            self._open_step()

    def optimizer_ends(self) -> None:
        """The update is done: this step ends and the next one begins, so that steps tile."""
        try:
            self._micro = 0
            self._backward_done = False
            if not pause.on:
                for told in [*self._updated] if self._updated else ():
                    told()
                if len(modules) != self._modules:
                    self._modules = len(modules)
                    for told in [*self._imported]:
                        told()
                now = clock()
                if now >= self._next_look:
                    self._next_look = now + SELDOM_NS
                    for told in [*self._seldom]:
                        told()
            if self.device is not None:
                self.device.poll()
            if not self.recorder.user_steps:
                self._begin_step()
        except Exception as error:
            failed("optimizer step", error)

    def _open_step(self) -> None:
        if self.stepper is not None and not self.step_open and not self.recorder.user_steps:
            self._begin_step()

    def _begin_step(self) -> None:
        if get_ident() == self.thread:
            self.recorder.next_step_here(self.here.found or self.here.find())
        else:  # another thread calls the optimizer
            self.recorder.begin_step()
        self.step_open = True
        if self._accumulates:
            self.recorder.set_micro_step(0)

    def _next_micro_step(self) -> None:
        if not self._backward_done:
            if self._accumulates and self.recorder.user_steps:
                self.recorder.set_micro_step(self._micro)
            return
        self._backward_done = False
        self._accumulates = True
        self._micro += 1
        self.recorder.set_micro_step(self._micro)

    def stop_steps(self) -> None:
        """End the step that is open; from now on nobody marks steps."""
        self.stepper = None
        if self.step_open and not self.recorder.user_steps:
            try:
                self.recorder.end_step()
            except Exception as error:
                failed("step", error)
        self.step_open = False
