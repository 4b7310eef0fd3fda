"""Windows: of a few steps in every hundred TensorFlow's own profiler says what was in them.

They are chosen by the number of the step, so all workers take the same ones. TensorFlow allows one
profiler a process: the user's own always wins, also when it begins while a window is open.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracekit import recorder
from tracekit.adapters._patch import patch
from tracekit.adapters.tensorflow._guard import failed, guarded
from tracekit.errors import UsageError
from tracekit.model import offset_now
from tracekit.recorder import Recorder

__all__ = ["EVERY", "LENGTH", "Windows", "settings_of"]

EVERY = 100
LENGTH = 4
FIRST = 10
"""The step at which the first window begins, behind those that warm up."""
_MODULE = "tensorflow.python.profiler.profiler_v2"
_STARTS = (
    _MODULE,
    "tensorflow.profiler.experimental",
    "tensorflow._api.v2.profiler.experimental",
    "tensorflow._api.v2.compat.v2.profiler.experimental",
)
_MOST_FAILURES = 3
_SETTLE_S = 0.005
"""A call returns before the threads of its collectives have noted their ends; what has none when
the profiler stops is not in the profile. A window ends one step late for that; where none follows
it waits."""
_SPAN = recorder.span_type("profile_window", "io")


def settings_of(windows: bool | Sequence[int]) -> tuple[int, int] | None:
    """How often and how long: from ``windows=``. Raises ``UsageError``."""
    if windows is True:
        return EVERY, LENGTH
    if not windows:
        return None
    try:
        every, length = (int(number) for number in windows)
    except (TypeError, ValueError):
        every = length = 0
    if not 0 < length < every:
        raise UsageError(f"windows= is True, False or (every, length) in steps, not {windows!r}")
    return every, length


class Windows:
    """The windows of one rank."""

    def __init__(self, rec: Recorder, every: int, length: int) -> None:
        self.recorder = rec
        self.every, self.length = every, length
        self._offset = min(FIRST, every - 1)
        self._folder: Path | None = None
        self._first = 0
        self._began = (0, 0)
        self._failed = 0
        self._undo: list[Callable[[], None]] = []
        self._watch()

    @property
    def is_open(self) -> bool:
        """Whether a window is open at the moment."""
        return self._folder is not None

    def _watch(self) -> None:
        """Give way when the user's own profiler begins."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def start(*args: Any, **kwargs: Any) -> Any:
                self.give_way()
                return original(*args, **kwargs)

            return start

        for name in _STARTS:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, "start"):
                self._undo.append(patch(module, "start", make))

    # The step's border

    @guarded("profile window")
    def before(self, step: int) -> None:
        """The step is about to begin: a window that had its steps, and one more, ends; one whose
        turn has come begins."""
        if self._folder is not None and step > self._first + self.length:
            self._stop()
        if self._folder is None and step % self.every == self._offset:
            self._start(step)

    @guarded("profile window")
    def give_way(self) -> None:
        """End a window early, as somebody else wants to profile."""
        if self._folder is not None:
            self._stop(_SETTLE_S)
            self._skip(self._first, "the program's own profiler began")

    @guarded("profile window")
    def close(self) -> None:
        """End what is open, and put back what was replaced."""
        if self._folder is not None:
            self._stop(_SETTLE_S)
        while self._undo:
            self._undo.pop()()

    # The window

    def _start(self, step: int) -> None:
        home = self.recorder.home
        profiler = sys.modules.get(_MODULE)
        if home is None or profiler is None or self._failed >= _MOST_FAILURES:
            return
        if getattr(profiler, "_profiler", None) is not None:
            self._skip(step, "the program's own profiler runs")
            return
        folder = home.attempt_dir / "xplane" / home.stem / f"window-{step:08d}"
        options = profiler.ProfilerOptions(2, 0, 1)
        began = recorder.clock()
        try:
            folder.mkdir(parents=True)
            original = getattr(profiler.start, "__wrapped__", profiler.start)
            original(str(folder), options)
        except Exception as error:
            self._forget(profiler)
            if type(error).__name__ == "AlreadyExistsError":
                self._skip(step, "another profiler runs in this process")
            else:
                self._fails(error)
            return
        self._folder, self._first = folder, step
        self._began = (began, recorder.clock())

    def _forget(self, profiler: Any) -> None:
        """TensorFlow keeps a session that did not begin, and then refuses the user's."""
        try:
            profiler.stop(save=False)
        except Exception:
            return

    def _stop(self, settle_s: float = 0.0) -> None:
        folder, self._folder = self._folder, None
        profiler: Any = sys.modules.get(_MODULE)
        if folder is None:
            return
        with _SPAN:
            end = recorder.clock()
            try:
                time.sleep(settle_s)
                profiler.stop()
                self._describe(folder, end)
            except Exception as error:
                self._fails(error)

    def _describe(self, folder: Path, end: int) -> None:
        home = self.recorder.home
        if home is None:
            return
        offset = home.clock_offset_ns
        begin = self._began[1]
        steps = [
            [number, start + offset, stop + offset]
            for number, start, stop in self.recorder.ended_steps()
            if start >= begin and stop <= end and number < self._first + self.length
        ]
        last = steps[-1][0] if steps else self._first
        size = sum(path.stat().st_size for path in folder.rglob("*.xplane.pb"))
        told = {
            "rank": self.recorder.rank,
            "first_step": self._first,
            "last_step": last,
            "start_ns": begin + offset,
            "end_ns": end + offset,
            "shift_ns": offset - offset_now(),
            "steps": steps,
        }
        temporary = folder / ".window.json.tmp"
        temporary.write_text(json.dumps(told))
        os.replace(temporary, folder / "window.json")
        about = {
            "first_step": self._first,
            "last_step": last,
            "start_ms": (begin - self._began[0]) / 1e6,
            "stop_ms": (recorder.clock() - end) / 1e6,
            "bytes": size,
        }
        self.recorder.event("profile_window", None, None, about)

    def _skip(self, step: int, why: str) -> None:
        recorder.say_once(f"a profile window was left out: {why}")
        self.recorder.event("profile_window_skipped", None, why, {"first_step": step})

    def _fails(self, error: Exception) -> None:
        self._failed += 1
        failed("profile window", error)
