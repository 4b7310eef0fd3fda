"""When work really ran on an accelerator: events on its streams, polled, never waited for.

The host only launches such work, so the host's times say nothing about it. An event recorded on
the current stream at each border of a phase is asked later, without waiting, whether it has
happened; its device time becomes host time through an anchor: an event on an idle stream of our
own, which happens at once, between two readings of the host's clock. Half the distance of these
two plus the drift since then is the error. One object, the ``Accelerator``, is all that touches
the device; everything else here is the same for a fake one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from tracekit import recorder
from tracekit.adapters.torch._guard import failed, guarded
from tracekit.model import Clock, Collective
from tracekit.recorder import Recorder, SpanType, clock

__all__ = ["Accelerator", "DeviceClock", "DeviceEvent", "DevicePhase", "Mark", "accelerator_of"]

ANCHOR_EVERY_NS = 1_000_000_000
ANCHOR_QUERIES = 50
DRIFT = 50e-6
"""How much the device's clock may run differently: 50 parts in a million are generous."""
MOST_PENDING = 4096
MOST_A_POLL = 256


class DeviceEvent(Protocol):
    """An event on a stream, as torch has them."""

    def query(self) -> bool:
        """Whether it has happened; never waits."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from here to another event that has happened too."""
        ...


class Accelerator(Protocol):
    """All that is asked of a device."""

    name: str

    def event(self) -> DeviceEvent:
        """A new event that keeps its time."""
        ...

    def record(self, event: DeviceEvent) -> int:
        """Put the event on the current stream; returns the stream's number."""
        ...

    def record_aside(self, event: DeviceEvent) -> None:
        """Put the event on a stream on which nothing else runs."""
        ...

    def capturing(self) -> bool:
        """Whether the current stream is being captured: then no event may be touched."""
        ...

    def memory(self) -> tuple[int, int, int] | None:
        """Bytes that tensors hold, the most they ever held, and what is reserved for them."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its name and size."""
        ...


class _TorchAccelerator:
    """An accelerator of torch, whichever backend it is."""

    def __init__(self, device: torch.device) -> None:
        self._module = getattr(torch, device.type)
        index = device.index if device.index is not None else self._module.current_device()
        self._device = torch.device(device.type, index)
        self.name = str(self._device)
        generic = hasattr(torch, "accelerator")
        self._current: Callable[[Any], Any] = (
            torch.accelerator.current_stream if generic else self._module.current_stream
        )
        if hasattr(torch, "Event") and generic:
            self._new: Callable[[], Any] = lambda: torch.Event(self._device, enable_timing=True)
        else:
            self._new = lambda: self._module.Event(enable_timing=True)
        self._capturing = getattr(self._module, "is_current_stream_capturing", lambda: False)
        self._aside: Any = None

    def event(self) -> Any:
        return self._new()

    def record(self, event: Any) -> int:
        stream = self._current(self._device)
        event.record(stream)
        return int(getattr(stream, "stream_id", 0))

    def record_aside(self, event: Any) -> None:
        if self._aside is None:
            self._aside = self._module.Stream(device=self._device)
        event.record(self._aside)

    def capturing(self) -> bool:
        return bool(self._capturing())

    def memory(self) -> tuple[int, int, int] | None:
        """From what the allocator counts on the host; None where it does not."""
        read = getattr(self._module, "memory_stats_as_nested_dict", None)
        if read is None:
            return None
        stats = read(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return allocated["current"], allocated["peak"], reserved["current"]

    def describe(self) -> dict[str, Any]:
        properties = self._module.get_device_properties(self._device)
        found: dict[str, Any] = {"name": str(properties.name)}
        for name in ("total_memory", "multi_processor_count", "major", "minor"):
            value = getattr(properties, name, None)
            if isinstance(value, int):
                found[name] = value
        return found


def accelerator_of(model: torch.nn.Module) -> Accelerator | None:
    """The accelerator on which a model lives; None on the CPU or where torch has no events."""
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type in ("cpu", "meta"):
        return None
    try:
        return _TorchAccelerator(parameter.device)
    except Exception as error:
        failed(f"device times of {parameter.device}", error)
        return None


class DevicePhase:
    """The span types of a phase or collective on a device, one for each stream."""

    def __init__(self, name: str, kind: str, collective: Collective | None = None) -> None:
        self._name, self._kind, self._collective = name, kind, collective
        self._types: dict[str, SpanType] = {}

    def on(self, lane: str) -> SpanType:
        """The type of this phase on a lane."""
        type_ = self._types.get(lane)
        if type_ is None:
            type_ = self._types[lane] = recorder.span_type(
                self._name, self._kind, self._collective, lane, Clock.DEVICE
            )
        return type_


class Mark:
    """An instant on a stream, known once the device has come there."""

    __slots__ = ("event", "stream")

    def __init__(self, event: DeviceEvent, stream: int) -> None:
        self.event = event
        self.stream = stream


class _Anchor:
    """A device event whose host time is known within an error."""

    __slots__ = ("error", "event", "host")

    def __init__(self, event: DeviceEvent, before: int, after: int) -> None:
        self.event = event
        self.host = (before + after) // 2
        self.error = (after - before + 1) // 2

    def host_time(self, event: DeviceEvent) -> tuple[int, int]:
        """The host time of another event and how wrong it may be, in nanoseconds."""
        distance = self.event.elapsed_time(event) * 1e6
        return self.host + int(distance), self.error + int(abs(distance) * DRIFT)


_Pending = tuple[DevicePhase, str | None, Mark, Mark, int, int, dict[str, Any], int, int]


class DeviceClock:
    """Turns marks on streams into spans of kind ``device`` once the device has passed them."""

    def __init__(self, accelerator: Accelerator, rec: Recorder) -> None:
        self._accelerator = accelerator
        self._recorder = rec
        self._spare: list[DeviceEvent] = []
        self._pending: deque[_Pending] = deque()
        self._anchor: _Anchor | None = None
        self._anchor_tried = 0

    def serves(self, device: torch.device) -> bool:
        """Whether it is this device's clock."""
        return self._accelerator.name == str(device)

    @guarded("device times")
    def mark(self) -> Mark | None:
        """Mark this place on the current stream; None while the stream is being captured."""
        accelerator = self._accelerator
        if accelerator.capturing():
            return None
        try:
            event = self._spare.pop()
        except IndexError:  # none left, also when another thread took the last one
            event = accelerator.event()
        return Mark(event, accelerator.record(event))

    @guarded("device times")
    def span(
        self,
        phase: DevicePhase,
        start: Mark | None,
        end: Mark | None,
        seq: int = 0,
        nbytes: int = 0,
        attributes: Mapping[str, Any] | None = None,
        lane: str | None = None,
    ) -> None:
        """Record a span between two marks, later, on the first one's stream or another lane.

        It belongs to the step that is open now. A mark among the attributes becomes its time;
        no mark may be used twice.
        """
        if start is None or end is None:
            return
        if len(self._pending) >= MOST_PENDING:
            self._pending.popleft()
            recorder.say_once(
                f"PyTorch adapter: {self._accelerator.name} is more than {MOST_PENDING} spans"
                " behind; the oldest device times are dropped"
            )
        rec = self._recorder
        where = (rec.step_word, rec.step_id)
        self._pending.append((phase, lane, start, end, seq, nbytes, dict(attributes or {}), *where))

    @property
    def name(self) -> str:
        """The device, as ``cuda:0``."""
        return self._accelerator.name

    def forget(self, *marks: Mark | None) -> None:
        """Marks that were not needed: their events are used again."""
        self._spare += [mark.event for mark in marks if mark is not None]

    @guarded("memory")
    def memory(self) -> tuple[int, int, int] | None:
        """What the device's allocator counts; see ``Accelerator``."""
        return self._accelerator.memory()

    @guarded("fact device")
    def describe(self) -> dict[str, Any]:
        """What the device is."""
        return self._accelerator.describe()

    @guarded("device times")
    def poll(self) -> None:
        """Record the spans whose end the device has passed; asks, never waits."""
        if not self._pending or self._accelerator.capturing():
            return
        now = clock()
        if self._anchor is None or now - self._anchor_tried > ANCHOR_EVERY_NS:
            self._anchor_tried = now
            self._anchor = self._new_anchor() or self._anchor
        if self._anchor is None:
            return
        for _ in range(min(len(self._pending), MOST_A_POLL)):
            _, _, start, end, *_ = self._pending[0]
            if not (start.event.query() and end.event.query()):
                return
            self._record(self._anchor, *self._pending.popleft())

    def _new_anchor(self) -> _Anchor | None:
        event = self._accelerator.event()
        before = clock()
        self._accelerator.record_aside(event)
        for _ in range(ANCHOR_QUERIES):
            if event.query():
                return _Anchor(event, before, clock())
        return None

    def _record(
        self,
        anchor: _Anchor,
        phase: DevicePhase,
        lane: str | None,
        start: Mark,
        end: Mark,
        seq: int,
        nbytes: int,
        attributes: dict[str, Any],
        step_word: int,
        step_id: int,
    ) -> None:
        begin, begin_error = anchor.host_time(start.event)
        finish, finish_error = anchor.host_time(end.event)
        self._spare += [start.event, end.event]
        name = self._accelerator.name
        for key, value in attributes.items():
            if isinstance(value, Mark):
                attributes[key] = anchor.host_time(value.event)[0]
                self._spare.append(value.event)
        attributes |= {"device": name, "error_ns": max(begin_error, finish_error)}
        phase.on(lane or f"stream:{name}:{start.stream}").complete(
            begin, finish, seq, nbytes, attributes, parent=step_id, step=step_word
        )
