"""When a rank's gradients are ready to be reduced: DDP's all-reduce from hooks on few gradients.

A hook on the last gradient of a bucket tells that the bucket is ready, just before DDP sends it.
Which gradient that is is learnt by hooks on all of them during a few backwards: at first, after DDP
has rebuilt its buckets, and once in a while, since a model may change its order. Where all looks
agree which bucket is the first and which the last to be ready, these two have a hook: each one
costs the backward some microseconds, in PyTorch more than here. The return of the backward is the
end of the all-reduce.

Nothing here holds the model: PyTorch's C++ side keeps the hooks, and a cycle through it is never
collected.
"""

from __future__ import annotations

import weakref
from functools import partial
from threading import get_ident
from typing import Any

import torch

from tracekit import recorder
from tracekit.adapters.torch._ddp import Replica
from tracekit.adapters.torch._device import DeviceClock, DevicePhase, Mark
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.recorder import CollectiveType, Here, Token, clock

__all__ = ["Arrivals"]

LEARN_EVERY = 128
"""Backwards between two looks at all gradients."""
LEARN_AGAIN = 2
"""Backwards that are looked at once the buckets are final."""
LEARN_AT_MOST = 12
"""Backwards after which buckets that torch does not tell are given up."""
SURE_AFTER = 8
"""Backwards in which the group makes as many calls as in the one before: from then on the backend
is asked for its number only when one begins, as long as that is the number that was seen. To ask
takes a twentieth of all that a step costs."""
FEW_GRADIENTS = 64
"""So many may all keep their hook where a backward may leave some out (half a microsecond each)."""


class Arrivals:
    """One all_reduce span for each backward that synchronises a DDP object's gradients."""

    def __init__(self, replica: Replica, device: DeviceClock | None) -> None:
        self._replica = replica
        self._device = device
        collective = replica.group.collective("all_reduce", replica.dtype)
        type_ = recorder.span_type("all_reduce", "comm", collective)
        assert isinstance(type_, CollectiveType)
        self._type = type_
        self._device_phase = DevicePhase("all_reduce", "comm", collective)
        self._group = replica.group
        self._before = 0  # the number of the group's last call before the backward
        self._calls = 1  # how many calls the group makes in a backward
        self._unsure = SURE_AFTER  # backwards after which the backend is asked for the number
        self._leaves_out = replica.may_leave_gradients_out()
        self._hooks: list[tuple[Any, weakref.ref[torch.nn.Parameter]]] = []
        self._buckets: list[list[int]] | None = None
        self._lasts: set[int] = set()  # the last gradients of buckets, of all looks
        self._ends: set[int] = set()  # those of the first and of the last bucket that was ready
        self._looks_at_all = False
        self._usual = 0  # buckets whose two ends have a hook; 0 while backwards may differ
        self._learning = 0  # more backwards to learn from
        self._backwards = 0
        self._expected = False  # a forward promised that gradients are synchronised
        self._armed = False
        self._thread = 0
        self._here = Here()  # the thread's that calls the backward
        self._times: list[tuple[int, int]] = []
        self._left = self._first = self._last = 0
        self._first_mark: Mark | None = None
        self._last_mark: Mark | None = None
        self._token: Token | None = None
        self._early = False  # gradients came after all had come: no span opens in a hook any more
        self._learn()

    # What the training does

    def are_expected(self) -> bool:
        """A forward begins, or is about to end; returns whether its backward reduces gradients."""
        in_cpp = self._replica.reduces_next()
        if not in_cpp:
            return in_cpp is not None
        self._expected = True
        if self._times:
            self._times.clear()
        self._left = len(self._hooks)
        self._first = self._last = 0
        self._first_mark = self._last_mark = None
        self._token = None
        return True

    def backward_begins(self, here: Here) -> None:
        """From here on hooks count, if the gradients are to be synchronised."""
        self._thread = get_ident()
        self._here = here
        if self._expected:
            try:
                self._ask()
                self._armed = True
            except Exception as error:
                failed("all_reduce arrivals", error)

    def backward_ends(self, error: bool) -> None:
        """The all-reduce is over: record it."""
        if not self._armed:
            return
        self._armed = False
        try:
            token = self._token
            if error or token is None or self._left or not self._usual:
                self._end(error)
                return
            self._expected = False
            state = self._here.found or self._here.find()
            self._type.end_of_buckets(token, self._usual, self._first, self._number(), state)
            self._backwards += 1
            if not self._backwards % LEARN_EVERY:
                self._settle()
        except Exception as mistake:
            failed("all_reduce arrivals", mistake)

    def _end(self, error: bool) -> None:
        came = len(self._hooks) - self._left
        if error:
            if self._token is not None:
                self._type.end(self._token, error=True)
            self._expected = False
        elif came > 0 and (self._left <= 0 or self._leaves_out):
            self._expected = False
            if self._learning:
                self._look()
            self._record()
            self._backwards += 1
            if self._looks_at_all or not self._backwards % LEARN_EVERY:
                self._settle()
        # else: another graph's backward, or the first of several that share one reduction

    @guarded("all_reduce arrivals")
    def answer_begins(self) -> Token | None:
        """Under ``Join`` a rank without inputs takes part in the others' all-reduce."""
        if self._device is not None:
            return None
        self._ask()
        return self._type.begin(self._before + self._calls, self._replica.gradient_bytes)

    @guarded("all_reduce arrivals")
    def answer_ends(self, token: Token | None) -> None:
        """It has taken part."""
        if token is not None:
            self._type.amend(token, self._number())
            self._type.end(token)

    def _ask(self) -> None:
        """Ask the backend for the number of the last call before the backward."""
        self._before = self._group.last()
        if self._before != self._group.seen:  # somebody calls whom nobody sees
            self._unsure = SURE_AFTER

    def _number(self) -> int:
        """The number of the backward's last call, by which all ranks know this all-reduce."""
        group, before = self._group, self._before
        if not self._unsure and group.seen <= before:
            last = before + self._calls
        else:
            last = group.last()
            if last <= before:
                return group.next()
            if last - before != self._calls:
                self._calls = last - before
                self._unsure = SURE_AFTER
            elif self._unsure:
                self._unsure -= 1
        group.seen = last
        return last

    def _record(self) -> None:
        token, seq, buckets = self._token, self._number(), self._buckets
        first: Any = self._first
        if buckets is not None and self._looks_at_all:
            first = self._first_ready(buckets)
        if self._first_mark is not None:
            first = self._first_mark
        attributes = {"buckets": len(buckets), "launch_ns": first} if buckets is not None else {}
        nbytes = self._replica.gradient_bytes
        if token is not None:
            self._type.amend(token, seq)
            self._type.end(token, attributes)
        elif self._device is None:
            self._type.complete(self._last, clock(), seq, nbytes, attributes)
        else:
            end = self._device.mark()
            self._device.span(self._device_phase, self._last_mark, end, seq, nbytes, attributes)

    def _first_ready(self, buckets: list[list[int]]) -> int:
        """When the first bucket had all its gradients."""
        ready = dict.fromkeys(range(len(buckets)), 0)
        bucket_of = {index: b for b, bucket in enumerate(buckets) for index in bucket}
        for index, time in self._times:
            ready[bucket_of[index]] = time
        return min((time for time in ready.values() if time), default=self._last)

    # The hooks: on the thread that runs the backward

    def _came(self, _: object) -> None:
        """The last gradient of a bucket is ready."""
        if not self._armed:
            return
        try:
            self._last = now = clock()
            if not self._first:
                self._first = now
            self._left -= 1
            if self._device is not None:
                self._came_on_device()
            elif not self._left:
                # Open the span now, so that a rank that hangs here shows it.
                if get_ident() == self._thread and not self._early:
                    state = self._here.found or self._here.find()
                    expected = self._before + self._calls
                    self._token = self._type.begin(expected, self._replica.gradient_bytes, state)
            elif self._left < 0:
                self._early = True
        except Exception as error:
            failed("all_reduce arrivals", error)

    def _one_came(self, index: int, parameter: object) -> None:
        """While learning: a gradient is ready."""
        if self._armed:
            self._times.append((index, clock()))
            self._came(parameter)

    def _came_on_device(self) -> None:
        assert self._device is not None
        self._last_mark = self._device.mark()
        if self._first_mark is None:
            self._first_mark = self._device.mark()

    # Which gradients

    def _look(self) -> None:
        """Learn from the order in which all gradients came."""
        buckets, final = self._replica.buckets()
        if buckets != self._buckets:
            self._buckets = buckets
            self._lasts.clear()
            self._ends.clear()
        order = {index: place for place, (index, _) in enumerate(self._times)}
        parts = ([index for index in bucket if index in order] for bucket in buckets or [[*order]])
        lasts = [max(came, key=order.__getitem__) for came in parts if came]
        if lasts:
            self._lasts.update(lasts)
            self._ends |= {min(lasts, key=order.__getitem__), max(lasts, key=order.__getitem__)}
        if len(order) < len(self._times):
            self._early = True  # gradients that come several times: only the last one counts
        if final:
            self._learning -= 1

    def _settle(self) -> None:
        """Go on with the hooks that are needed, or look at all gradients again."""
        turn = self._backwards % LEARN_EVERY
        if self._learning and turn < LEARN_AT_MOST:
            return
        self._learning = 0
        if not self._looks_at_all:
            if not turn:
                self._learn()
        elif not self._leaves_out or len(self._hooks) > FEW_GRADIENTS:
            same_ends = len(self._ends) <= 2 and not self._leaves_out
            self._hook(dict.fromkeys(self._ends if same_ends else self._lasts, self._came))
            self._looks_at_all = False
            if same_ends and self._device is None and self._buckets is not None:
                self._usual = len(self._buckets)

    def _learn(self) -> None:
        self._learning = LEARN_AGAIN
        self._buckets, _ = self._replica.buckets()
        count = len(self._replica.parameters())
        self._hook({index: partial(self._one_came, index) for index in range(count)})
        self._looks_at_all = True
        self._usual = 0

    def _hook(self, hooks: dict[int, Any]) -> None:
        self.remove()
        parameters = self._replica.parameters()
        for index, hook in hooks.items():
            parameter = parameters[index]
            handle = parameter.register_post_accumulate_grad_hook(hook)
            self._hooks.append((handle, weakref.ref(parameter)))
        self._left = len(self._hooks)

    @guarded("detach")
    def remove(self) -> None:
        """Take the hooks away; a parameter that had none before is as if it never had one."""
        for handle, reference in self._hooks:
            handle.remove()
            parameter = reference()
            if parameter is not None and parameter._post_accumulate_grad_hooks == {}:
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]
        self._hooks.clear()
