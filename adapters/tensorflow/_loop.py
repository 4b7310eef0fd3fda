"""The steps of a training: who marks them, what is recorded of each, when a window begins."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from tracekit import recorder
from tracekit.adapters.tensorflow._calls import calls_of
from tracekit.adapters.tensorflow._guard import failed, guarded
from tracekit.adapters.tensorflow._windows import Windows
from tracekit.recorder import Recorder, SpanType, clock, pause

__all__ = ["Loop", "active", "join"]

_COMPILE = "compile"
_loops: WeakKeyDictionary[Recorder, Loop] = WeakKeyDictionary()
_types: dict[tuple[str, str], SpanType] = {}


def type_of(name: str, kind: str) -> SpanType:
    """The span type of a function, made once."""
    type_ = _types.get((name, kind))
    if type_ is None:
        type_ = _types[name, kind] = recorder.span_type(name, kind)
    return type_


class Loop:
    """The training of one rank, on the thread that makes its updates.

    ``fit`` marks its steps by itself. In a loop of the user's own a step ends with the outermost
    call, of a ``tf.function``, of ``strategy.run`` or of an optimizer, in which gradients were
    applied; that is seen when TensorFlow traces the function, and known from then on.
    """

    def __init__(self, rec: Recorder) -> None:
        self.recorder = rec
        self.users = 0
        self.windows: Windows | None = None
        self.in_fit = False
        self.evaluates = False
        self.runs = ""
        """What calls are named that Keras makes; else they have the name of their function."""
        self.updated: tuple[Callable[[], None], ...] = ()
        """Called after each update."""
        self.phases: Any = None
        """What asks for times inside of graphs."""
        self.check: Any = None
        """What looks at gradients before they are applied."""
        self.call_began = self.call_ended = 0
        """When the newest call that trains began and ended; zeros where it was traced as well."""
        self.outermost_trace: object = None
        """Says which call of the program traces at the moment."""
        self._frames: list[object] = []
        self._marked = self._applied = False
        """Whether the call applied gradients: as it was traced, by a function known to."""
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._thread = 0
        self._open = False

    # Steps

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self.recorder.step is not None

    @guarded("step")
    def begin_step(self) -> None:
        """The next step begins; one that is open ends here."""
        rec = self.recorder
        if rec.user_steps:
            return
        if self.windows is not None:
            self.windows.before(rec.next_step)
        rec.begin_step()
        self._open = True

    @guarded("step")
    def end_step(self, error: bool = False) -> None:
        """The open step ends, and no other one begins."""
        if self._open and not self.recorder.user_steps:
            self.recorder.end_step(error)
        self._open = False

    @guarded("step")
    def user_step(self) -> None:
        """An update is done in a step that the user marks: the next one may be a window's."""
        number = self.recorder.step
        if self.windows is not None and number is not None:
            self.windows.before(number + 1)

    def _updates(self) -> None:
        """An update is done."""
        for told in () if pause.on else self.updated:
            told()
        if self.recorder.user_steps:
            self.user_step()
        elif not self.in_fit:
            self.begin_step()

    # Calls

    def mark(self) -> None:
        """Gradients are applied, or TensorFlow is told how: the outermost call is an update."""
        if self._frames:
            self._marked = True
            for key in self._frames:
                if key is not None:
                    self._known.add(key)

    @property
    def trains(self) -> bool:
        """Whether gradients were applied in the call that is on its way, or was the last."""
        return self._marked or self._applied

    @property
    def inside(self) -> bool:
        """Whether a call that counts is on its way, on this or a replica's thread."""
        return bool(self._frames)

    def run(self, name: str, key: object, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call of the program; the outermost one is recorded, and may be a step."""
        frames = self._frames
        if frames:
            if key is not None and key in self._known:
                self._applied = True
            if get_ident() != self._thread:
                return call(*args, **kwargs)
            frames.append(key)
            try:
                return call(*args, **kwargs)
            finally:
                frames.pop()
        return self._outermost(name, key, call, args, kwargs)

    def _outermost(
        self, name: str, key: object, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        known = key is not None and key in self._known
        self._thread = get_ident()
        self._marked = self._applied = False
        self._frames.append(key)
        opened = None
        try:
            if known and not self.in_step and not self.evaluates:
                self.begin_step()
            new = key is not None and key not in self._seen
            type_ = type_of(name, _COMPILE if new else "launch")
            if known:
                opened = calls_of(self.recorder).begin("step", name, name)
        except Exception as error:
            failed("call", error)
            type_ = type_of("call", "launch")
            new = False
        self.outermost_trace = object()
        started = clock()
        try:
            if pause.on:
                result = call(*args, **kwargs)
            else:
                with type_:
                    result = call(*args, **kwargs)
        except BaseException as error:
            if opened is not None:
                calls_of(self.recorder).fail(opened, error)
            raise
        finally:
            self._frames.clear()
        if opened is not None:
            calls_of(self.recorder).end(opened, False)
        if new:
            self._note(key)
        if known or self._marked or self._applied:
            traced = new or self._marked
            self.call_began, self.call_ended = (0, 0) if traced else (started, clock())
            self._ends()
        return result

    @guarded("call")
    def _note(self, key: Any) -> None:
        self._seen.add(key)

    @guarded("update")
    def _ends(self) -> None:
        if not self.evaluates:
            self._updates()

    # Its users

    def leave(self) -> None:
        """Forget the loop when its last user goes."""
        self.users -= 1
        if self.users <= 0:
            if _loops.get(self.recorder) is self:
                del _loops[self.recorder]
            self.end_step()
            if self.windows is not None:
                self.windows.close()
                self.windows = None


def join(rec: Recorder, windows: tuple[int, int] | None) -> Loop:
    """The loop of a rank, made when there is none; its first user's windows count."""
    loop = _loops.get(rec)
    if loop is None:
        loop = _loops[rec] = Loop(rec)
    loop.users += 1
    if windows is not None and loop.windows is None and "tensorflow" in sys.modules:
        loop.windows = Windows(rec, *windows)
    return loop


def active() -> Loop | None:
    """The loop of this thread's rank, if it is traced."""
    rec = recorder.current()
    return None if rec is None else _loops.get(rec)
