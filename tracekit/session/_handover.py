"""The one exporter that runs in the job: a user's ``SpanExporter`` gets the spans of this process.

A thread reads this process's own journals, as the agent does and without taking anything from
it: no lock of a journal, nothing marked, nothing removed.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tracekit.errors import TracekitError, UsageError
from tracekit.exporters.otel_sdk import HandedOver, hand_over, unobserved
from tracekit.recorder import say_once
from tracekit.session._rundir import Place
from tracekit.session._tail import Tail

__all__ = ["Handover", "check"]

_EVERY_S = 1.0
_END_S = 5.0
"""What the exporter has at most, all in all, once the process ends or recording stops."""
_LOCK_S = 1.0


def check(span_exporter: Any) -> None:
    """Raise ``UsageError`` for what is no exporter."""
    if isinstance(span_exporter, type) or not callable(getattr(span_exporter, "export", None)):
        raise UsageError(
            f"span_exporter= needs a SpanExporter of OpenTelemetry, not {span_exporter!r}"
        )


class Handover:
    """A thread that hands over what is new every second, and the rest within 5 s at the end.

    ``places`` says where the journals lie now, each under a key that stays. ``done`` counts.
    """

    def __init__(self, span_exporter: Any, places: Callable[[], Mapping[int, Place]]) -> None:
        self.span_exporter = span_exporter
        self.done = HandedOver()
        self._name = type(span_exporter).__name__
        self._places = places
        self._tails: dict[int, Tail] = {}
        self._reading = threading.Lock()
        """Held while journals are read, never while the exporter works."""
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._asked = self._answered = 0
        self._ending = self._given_up = False
        self._end_by: float | None = None
        # A provider that was made before shuts its exporters down at exit; whoever registers later
        # is called earlier.
        atexit.register(self.flush)
        self._thread = threading.Thread(
            target=self._run, name="tracekit-span-exporter", daemon=True
        )
        self._thread.start()

    def look(self) -> None:
        """Map what there is now: its files may be gone when they are read."""
        if os.getpid() != self._pid or not self._reading.acquire(timeout=_LOCK_S):
            return
        try:
            self._look()
        finally:
            self._reading.release()

    def flush(self) -> None:
        """Wait until all that is recorded now was handed over, at most for what is left of 5 s."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            return
        if self._end_by is None:
            self._end_by = time.monotonic() + _END_S
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            rest = self._end_by - time.monotonic()
            if not self._changed.wait_for(lambda: self._answered >= wanted, max(0.0, rest)):
                self._given_up = self._ending
                say_once(
                    f"{self._name} did not take the last spans within {_END_S:.0f} s:"
                    " they are in the run alone"
                )

    def finish(self) -> None:
        """Hand over the rest and end, once the journals are closed."""
        self._ending = True
        self.flush()
        atexit.unregister(self.flush)
        if self.done.failed:
            say_once(
                f"{self._name} did not take {self.done.failed:,} of"
                f" {self.done.taken + self.done.failed:,} spans: {self.done.reason}"
            )

    # The thread

    def _run(self) -> None:
        try:
            with unobserved():
                while not self._turned():
                    with self._changed:
                        self._changed.wait_for(lambda: self._asked > self._answered, _EVERY_S)
        finally:
            self._tails.clear()  # they hold the memory of files that may be removed
            with self._changed:
                self._answered = sys.maxsize
                self._changed.notify_all()

    def _turned(self) -> bool:
        """Hand over what there is, whatever the exporter does; whether that was the last time."""
        asked = self._asked  # first: who asks for the end has said so before
        ending = self._ending
        try:
            self._turn(ending)
        except Exception as error:
            say_once(f"spans were not handed over: {type(error).__name__}: {error}")
        with self._changed:
            self._answered = asked
            self._changed.notify_all()
        return ending

    def _turn(self, ending: bool) -> None:
        """Read and hand over what is new, a portion at a time."""
        with self._reading:
            self._look()
        for tail in list(self._tails.values()):
            self._drain(tail, ending)

    def _drain(self, tail: Tail, ending: bool) -> None:
        try:
            while not self._given_up:
                with self._reading:
                    portion = tail.read(ending)
                if portion is None:
                    break
                failed = self.done.failed
                hand_over([portion], self.span_exporter, self.done, lambda: self._given_up)
                if self.done.failed > failed:
                    say_once(f"{self._name} did not take spans: {self.done.reason}")
        except BaseException as error:  # an exporter that wants to exit ends nothing but its batch
            say_once(f"spans were not handed over: {type(error).__name__}: {error}")
        if tail.missed:
            say_once(f"{self._name} is too slow: spans were removed before it came to them")

    def _look(self) -> None:
        for key, place in self._places().items():
            self._look_at(key, place)

    def _look_at(self, key: int, place: Place) -> None:
        try:
            if key not in self._tails:
                self._tails[key] = Tail(place)
            else:
                self._tails[key].look(place)
        except FileNotFoundError:
            return  # being renamed, or there was no room for a journal
        except (OSError, TracekitError) as error:
            say_once(f"spans are not handed over: {error}")
