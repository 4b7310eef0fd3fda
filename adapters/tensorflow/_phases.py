"""What a step is made of inside its graph: the time at four points, asked by the graph itself.

When TensorFlow traces the function that trains, a few operations are added that only ask the
clock: when the batch was there, when the loss was, when the gradients of this worker were (that is
its arrival at the all-reduce) and when they were reduced. Nothing waits for them and no value
passes through them. All land in one variable, which is read after the step.

Not where an accelerator computes, as the host's clock says little there; not in what XLA compiles;
not with several replicas in a process.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from tracekit.adapters._patch import patch
from tracekit.adapters.tensorflow._calls import calls_of
from tracekit.adapters.tensorflow._guard import failed, guarded
from tracekit.adapters.tensorflow._loop import Loop, active, type_of
from tracekit.model import offset_now

__all__ = ["watch_phases"]

_PATCHES = (
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "_next_internal", "_data"),
    ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator", "get_next_as_optional", "_data"),
    ("tensorflow.python.eager.backprop", "GradientTape", "gradient", "_gradient"),
    (
        "tensorflow.python.distribute.cross_device_utils",
        "CollectiveReplicaLauncher",
        "all_reduce",
        "_all_reduce",
    ),
    (
        "tensorflow.python.distribute.cross_device_utils",
        "CollectiveReplicaLauncher",
        "batch_all_reduce",
        "_batch",
    ),
)
_DATA, _LOSS, _ROUNDS = 0, 1, 2
"""Places in the variable; of rounds the last one, as a loop in the graph has several."""
_FIRST, _MOST = 3, 14


def watch_phases(loop: Loop) -> list[Callable[[], None]]:
    """Ask for the times in what is traced from now on; returns what undoes it."""
    tf = sys.modules["tensorflow"]
    if tf.config.get_visible_devices("GPU") or loop.phases is not None:
        return []
    phases = _Phases(loop)
    if not phases.ready:
        return []
    loop.phases = phases
    undo: list[Callable[[], None]] = [phases.stop]
    for module, name, method, make in _PATCHES:
        owner = getattr(sys.modules.get(module), name, None)
        try:
            undo.append(patch(owner, method, globals()[make]))
        except Exception as error:
            failed(f"{name}.{method}", error)
    loop.updated = (*loop.updated, phases.look)
    return undo


class _Phases:
    """The clock readings of one rank."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.ready = False
        self.live = True
        self._reduces: list[tuple[int, int, int]] = []
        """Of each collective its place, which call it belongs to, and its bytes."""
        self._calls = 0
        self.batch = 0
        """How many calls that send several buckets at once are on their way."""
        self._graph: Any = None
        self._rounds = 0.0
        # In a thread of its own: in this one a strategy may make a variable of all workers of it.
        maker = threading.Thread(target=self._make, name="tracekit-clock")
        maker.start()
        maker.join()

    @guarded("clock in the graph")
    def _make(self) -> None:
        tf = sys.modules["tensorflow"]
        size = _FIRST + 2 * _MOST
        with tf.device("/CPU:0"):
            self._times = tf.Variable(
                tf.zeros([size], tf.float64), trainable=False, name="tracekit_times"
            )
        self.ready = True

    def stop(self) -> None:
        """Look no more; graphs that were traced meanwhile go on asking the clock."""
        self.live = False
        self.loop.phases = None
        self.loop.updated = tuple(one for one in self.loop.updated if one != self.look)

    # In the graph

    def here(self) -> bool:
        """Whether this is the trace of a function whose times can be had."""
        tf = sys.modules["tensorflow"]
        if not self.live or tf.executing_eagerly() or not self.loop.inside or self.loop.evaluates:
            return False
        if tf.distribute.in_cross_replica_context() is False:
            context = tf.distribute.get_replica_context()
            strategy = context.strategy
            devices = getattr(strategy.extended, "_num_devices_per_worker", None)
            local = devices if devices is not None else strategy.num_replicas_in_sync
            if int(local) != 1:
                return False
        graph = tf.compat.v1.get_default_graph()
        control: Any = sys.modules.get("tensorflow.python.ops.control_flow_util")
        return control is not None and not control.GraphOrParentsInXlaContext(graph)

    @guarded("clock in the graph")
    def stamp(self, place: int, after: Any) -> None:
        """Have the graph note the time at which these tensors are there."""
        tf = sys.modules["tensorflow"]
        tensors = [one for one in tf.nest.flatten(after, expand_composites=True) if _symbolic(one)]
        if not tensors:
            return
        with tf.device("/CPU:0"), tf.control_dependencies(tensors):
            tf.raw_ops.ResourceScatterUpdate(  # 1 µs less than to assign to a slice
                resource=self._times.handle, indices=place, updates=tf.timestamp()
            )

    @guarded("clock in the graph")
    def loss_is_there(self, target: Any) -> None:
        """The gradient of something begins."""
        self._new_trace()
        self.stamp(_LOSS, target)

    @guarded("clock in the graph")
    def data_is_there(self, batch: Any) -> None:
        """The graph has taken a batch."""
        self._new_trace()
        self.stamp(_DATA, batch)
        tf = sys.modules["tensorflow"]
        with tf.device("/CPU:0"):
            tf.raw_ops.ResourceScatterAdd(
                resource=self._times.handle, indices=_ROUNDS, updates=tf.constant(1.0, tf.float64)
            )

    def _new_trace(self) -> None:
        """What an earlier trace had is over with: it is traced anew because it does not fit."""
        graph = self.loop.outermost_trace
        if graph is not self._graph:
            self._graph = graph
            self._reduces.clear()

    def begin_batch(self) -> None:
        """What is reduced until the batch ends is one call."""
        if not self.batch:
            self._calls += 1
        self.batch += 1

    @guarded("clock in the graph")
    def place_of_reduce(self, tensor: Any) -> int | None:
        """Where the times of the next collective go."""
        self._new_trace()
        if len(self._reduces) >= _MOST:
            return None
        place = _FIRST + 2 * len(self._reduces)
        count = tensor.shape.num_elements() or 0
        if not self.batch:
            self._calls += 1
        self._reduces.append((place, self._calls, count * tensor.dtype.size))
        return place

    # After the step

    def _read(self) -> list[float]:
        """The variable, by one operation: its own ``numpy()`` takes some 40 µs more."""
        tf = sys.modules["tensorflow"]
        read = tf.raw_ops.ReadVariableOp(resource=self._times.handle, dtype=tf.float64)
        return read.numpy().tolist()  # type: ignore[no-any-return]

    @guarded("clock in the graph")
    def look(self) -> None:
        """Record the phases of the update that is done."""
        if not self.live:
            return
        loop = self.loop
        begin, end = loop.call_began, loop.call_ended
        raw = self._read()
        rounds = raw[_ROUNDS]
        before, self._rounds = self._rounds, rounds
        if not begin or rounds - before > 1:
            return  # traced just now, or a loop in the graph: only its last round is known
        offset = offset_now(2)

        def at(place: int) -> int | None:
            time_ns = int(raw[place] * 1e9) - offset
            inside = begin - 1000 <= time_ns <= end + 1000  # the graph's clock counts in µs
            return min(max(time_ns, begin), end) if inside else None

        data, loss = at(_DATA), at(_LOSS)
        if data is not None and loss is not None:
            data = min(data, loss)  # its clock may be asked late, by a thread that was busy
        calls = self._times_of_calls(at)
        moment = begin
        if data is not None:
            type_of("data_wait", "data").complete(moment, data)
            moment = data
        if loss is not None:
            early = [end for start, end, _, _ in calls if start < loss]
            # Whether all workers have a batch is asked of all.
            moment = min(max([moment, *early]), loss)
            type_of("forward", "forward").complete(moment, loss)
            late = [call for call in calls if call[0] >= loss]
            ready = late[0][0] if late else end
            if ready > loss:
                type_of("backward" if late else "backward_update", "backward").complete(loss, ready)
            if late and end > late[0][1]:
                type_of("update", "optimizer").complete(late[0][1], end)
        host = calls_of(loop.recorder)
        for start, stop, size, buckets in calls:
            host.complete("graph", "all_reduce", start, stop, size, buckets)

    def _times_of_calls(self, at: Callable[[int], int | None]) -> list[tuple[int, int, int, int]]:
        """Arrival, end, bytes and buckets of each call, in the order in which they are made.

        Buckets that are sent together are one call, which begins with the last of them.
        """
        together: dict[int, list[tuple[int, int, int]]] = {}
        for place, call, size in self._reduces:
            start, stop = at(place), at(place + 1)
            if start is not None and stop is not None and stop >= start:
                together.setdefault(call, []).append((start, stop, size))
        return [
            (
                max(start for start, _, _ in buckets),
                max(stop for _, stop, _ in buckets),
                sum(size for _, _, size in buckets),
                len(buckets),
            )
            for buckets in together.values()
        ]


def _symbolic(one: Any) -> bool:
    return hasattr(one, "op") and hasattr(one, "graph") and not hasattr(one, "assign")


def _phases() -> _Phases | None:
    loop = active()
    found: Any = loop.phases if loop is not None else None
    try:
        return found if found is not None and found.here() else None
    except Exception as error:
        failed("clock in the graph", error)
        return None


def _data(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def following(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        phases = _phases()
        if phases is not None:
            phases.data_is_there(getattr(result, "_variant_tensor", result))
        return result

    return following


def _gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        phases = _phases()
        if phases is not None:
            phases.loss_is_there(target)
        return original(self, target, *args, **kwargs)

    return gradient


def _all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def all_reduce(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = input_tensor
        phases = _phases()
        place = phases.place_of_reduce(tensor) if phases is not None else None
        if phases is None or place is None:
            return original(self, tensor, *args, **kwargs)
        phases.stamp(place, tensor)
        result = original(self, tensor, *args, **kwargs)
        phases.stamp(place + 1, result)
        return result

    return all_reduce


def _batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def batch_all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        phases = _phases()
        if phases is None:
            return original(self, *args, **kwargs)
        phases.begin_batch()
        try:
            return original(self, *args, **kwargs)
        finally:
            phases.batch -= 1

    return batch_all_reduce
