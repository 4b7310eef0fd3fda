"""Which recorder a call belongs to: the thread's rank, else the process's, else none."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tracekit.model import KINDS
from tracekit.recorder import threads
from tracekit.recorder._attributes import as_text
from tracekit.recorder._intern import OTHER, interner
from tracekit.recorder._overhead import cold_cost
from tracekit.recorder._recorder import Recorder
from tracekit.recorder._sink import Chunk
from tracekit.recorder._thread import ThreadState, null_state
from tracekit.recorder._types import span_type
from tracekit.recorder.spans import AttributedSpan, SpanType

__all__ = [
    "as_rank",
    "bind_identity",
    "cost_of",
    "current",
    "current_or_start",
    "event",
    "fact",
    "install",
    "recorders",
    "remove",
    "renumber",
    "say_once",
    "set_starter",
    "span",
    "step",
    "tell_stopped",
    "when_stopped",
]

logger = logging.getLogger("tracekit")

_recorders: dict[int, Recorder] = {}
_default: Recorder | None = None
_starter: Callable[[], Recorder | None] | None = None
_binder: Callable[..., None] | None = None
_rank_maker: Callable[[int], Recorder | None] | None = None
_said: set[str] = set()
_MOST_SAID = 1000
_LONGEST_SAID = 400


def say_once(message: str) -> None:
    """Tell the user something about tracekit itself, once a process, through ``logging``."""
    if message not in _said and len(_said) < _MOST_SAID:
        _said.add(message)
        logger.warning("tracekit: %s", _one_line(message))


def _one_line(text: str) -> str:
    """Text of the user's made fit for any terminal, file and encoding."""
    short = text if len(text) <= _LONGEST_SAID else text[:_LONGEST_SAID] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


class _NullSink:
    """Keeps nothing; what a recorder that never was writes to."""

    open_rows = 1024
    group_rows = 256
    open_words = memoryview(bytearray(1025 * 64)).cast("q")
    group_words = memoryview(bytearray(256 * 32)).cast("q")
    _chunk = memoryview(bytearray(16384)).cast("q")

    def chunk(self, lane: int, thread_id: int) -> Chunk:
        return self._chunk, 0, 0

    def define(self, type_: int, id_: int, payload: bytes) -> bool:
        return True

    def count(self, counter: str, amount: int = 1) -> None:
        return None

    def close(self) -> None:
        return None


_null_recorder = Recorder(_NullSink(), 0, 1)
_null_recorder.close()


def _attach() -> ThreadState:
    """Find this thread's state; silent where nothing records."""
    recorder = getattr(_bound, "recorder", None) or _default
    try:
        if recorder is None or recorder.closed:
            state = null_state(_null_recorder)
        else:
            state = recorder.state()
    except Exception:
        state = null_state(_null_recorder)
    threads.local.state = state
    return state


threads.attach = _attach
_bound = threading.local()


def current() -> Recorder | None:
    """The recorder of this thread's rank, or None; never raises."""
    recorder: Recorder | None = getattr(_bound, "recorder", None) or _default
    return recorder if recorder is not None and not recorder.closed else None


def set_starter(
    starter: Callable[[], Recorder | None],
    binder: Callable[..., None],
    rank_maker: Callable[[int], Recorder | None],
) -> None:
    """Let the session say how a recorder comes to be when an adapter or ``as_rank`` needs one."""
    global _starter, _binder, _rank_maker
    _starter, _binder, _rank_maker = starter, binder, rank_maker


def current_or_start() -> Recorder | None:
    """The current recorder; started from the environment when there is none.

    None when tracekit is disabled or this is a forked child.
    """
    recorder = current()
    if recorder is None and _starter is not None:
        recorder = _starter()
    return recorder


def bind_identity(
    rank: int | None = None,
    world_size: int | None = None,
    uid_store: Callable[[str, str], str] | None = None,
    alone: bool = False,
) -> None:
    """Tell the session what a process group knows better than the environment.

    ``uid_store(key, proposal)`` sets a value once for the whole job and returns the one that
    won; it may take a second at most and may raise. ``alone`` says that there is no group: a
    process that nobody gave a rank is the only one for good.
    """
    if _binder is not None:
        _binder(rank=rank, world_size=world_size, uid_store=uid_store, alone=alone)


def install(recorder: Recorder, default: bool = True) -> None:
    """Make a recorder known; the default one serves all threads that are bound to no rank."""
    global _default
    _recorders[recorder.rank] = recorder
    if default or _default is None:
        _default = recorder
        threads.reset()  # else the stacks of other threads would be forgotten


def remove(recorder: Recorder) -> None:
    """Forget a recorder that is closed."""
    global _default
    for rank, known in list(_recorders.items()):
        if known is recorder:
            del _recorders[rank]
    if _default is recorder:
        _default = None
    threads.reset()


_when_stopped: list[Callable[[], None]] = []


def when_stopped(callback: Callable[[], None]) -> None:
    """Call ``callback`` once, when the process has stopped recording; for what it then undoes."""
    _when_stopped.append(callback)


def tell_stopped() -> None:
    """Say that the process has stopped recording; a callback that fails is said, not raised."""
    try:
        while _when_stopped:
            _when_stopped.pop()()
    except Exception as error:
        say_once(f"something was left attached: {type(error).__name__}: {error}")


def cost_of(call: Callable[[], Any]) -> int:
    """Nanoseconds that a call costs which records something; nothing of it is kept."""
    before = getattr(threads.local, "state", None)
    threads.local.state = null_state(_null_recorder)
    threads.turn()
    try:
        return cold_cost(call)
    finally:
        if before is not None:
            threads.local.state = before
        else:
            del threads.local.state
        threads.turn()


def renumber(recorder: Recorder) -> None:
    """File a recorder under the rank it has now; threads keep what they have open."""
    for rank, known in list(_recorders.items()):
        if known is recorder:
            del _recorders[rank]
    _recorders[recorder.rank] = recorder


def recorders() -> list[Recorder]:
    """All recorders of the process."""
    return list(_recorders.values())


def _rebind(recorder: Recorder | None) -> None:
    _bound.recorder = recorder
    if hasattr(threads.local, "state"):
        del threads.local.state
    threads.turn()


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    """Record what this thread does inside as the given rank; several ranks share a process."""
    before: Recorder | None = getattr(_bound, "recorder", None)
    recorder = _recorders.get(rank)
    if recorder is None and _rank_maker is not None:
        recorder = _rank_maker(rank)
    _rebind(recorder or before)
    try:
        yield
    finally:
        _rebind(before)


_types: dict[str, dict[str, SpanType]] = {kind: {} for kind in KINDS}
_MOST_TYPES = 1024
"""Of one kind; a type takes four kilobytes."""
_MOST_KINDS = 64


def span(name: str, /, kind: str = "user", **attributes: Any) -> SpanType | AttributedSpan:
    """Record what runs inside ``with tracekit.span("augment", kind="data", batch=64):``.

    ``kind`` is one of ``tracekit.model.KINDS``; attributes may be anything JSON can hold.
    """
    try:
        type_ = _types[kind][name]
    except Exception:  # new, or something that is not a text
        type_ = _new_type(as_text(name), as_text(kind))
    if not attributes:
        return type_
    attributed = type_.attributed()
    attributed.attributes = attributes
    return attributed


def _new_type(name: str, kind: str) -> SpanType:
    """The type of a name not seen before; ``~other`` when names never stop being new."""
    known = _types.get(kind)
    if known is None:
        known = _types["user"]
        if len(_types) < _MOST_KINDS:
            _types[kind] = known
    if name not in known and len(known) >= _MOST_TYPES:
        interner.fold()
        name = OTHER
    type_ = known.get(name)
    if type_ is None:
        type_ = known[name] = span_type(name, kind)
    return type_


class step:
    """Mark one optimizer update: ``with tracekit.step(i):``. Adapters then add phases only."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        recorder = current()
        if recorder is not None:
            recorder.user_steps = True
            try:
                recorder.begin_step(int(self._number))
            except Exception as error:
                say_once(f"a step without a number was not recorded: {as_text(error)}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        recorder = current()
        if recorder is not None:
            recorder.end_step(error=kind is not None)


def event(
    name: str, value: float | None = None, text: str | None = None, **attributes: Any
) -> None:
    """Record an instant: ``tracekit.event("loss", value=0.31)``; without a recorder: nothing."""
    recorder = current()
    if recorder is None:
        return
    try:
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError):  # of several replicas, or nothing of the kind
            number, parts = _of_replicas(value)
            attributes = {**parts, **attributes}
        words = None if text is None else as_text(text)
        recorder.event(as_text(name), number, words, attributes)
    except Exception as error:
        say_once(f"event {as_text(name)} was not recorded: {as_text(error)}")


def _of_replicas(value: Any) -> tuple[float, dict[str, Any]]:
    """The mean of a value that each replica of this process has one of, and all of them.

    TensorFlow's ``PerReplica`` has them as ``values``. Other processes are not asked. Raises
    ``TypeError`` for everything else.
    """
    values = getattr(value, "values", None)
    if not isinstance(values, tuple) or not values:
        raise TypeError(f"{type(value).__name__} is no number")
    local = [float(one) for one in values]
    return sum(local) / len(local), {"local": local, "reduced": "mean"}


def fact(name: str, value: Any) -> None:
    """Record what is neither interval nor instant: versions, settings, topology."""
    recorder = current()
    if recorder is None:
        return
    try:
        recorder.fact(as_text(name), value)
    except Exception as error:
        say_once(f"fact {as_text(name)} was not recorded: {as_text(error)}")


def _after_fork_in_child() -> None:
    """A child (a DataLoader worker) is silent and leaves the parent's journal alone."""
    global _default
    _default = None
    for recorder in _recorders.values():
        recorder.abandon()
    _recorders.clear()
    interner.after_fork()
    threads.reset()
    _bound.__dict__.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
