"""Memory after each update: what the process holds, on an accelerator what its allocator does."""

from __future__ import annotations

import os
from collections.abc import Callable

from tracekit import recorder
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop

__all__ = ["watch_memory"]

STATM = "/proc/self/statm"
CHANGE = 1 << 20
_MEMORY = recorder.EventType("memory")


def watch_memory(loop: Loop) -> list[Callable[[], None]]:
    """Record the event ``memory`` after updates where it has changed by a mebibyte."""
    return loop.share(_watch)


def _watch(loop: Loop) -> list[Callable[[], None]]:
    if loop.device is not None:
        memory: _Memory = _OfDevice(loop)
        return [loop.watch_seldom(memory.updated)]
    try:
        file = os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        recorder.say_once(f"PyTorch adapter: memory is not recorded: {error}")
        return []
    memory = _OfProcess(loop, file)
    return [loop.watch_seldom(memory.updated), lambda: os.close(file)]


class _Memory:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @guarded("memory")
    def updated(self) -> None:
        """An update was made; seldom, since asking takes some microseconds."""
        self.look()

    def look(self) -> None:
        """Record what has changed."""
        raise NotImplementedError


class _OfProcess(_Memory):
    """The resident memory of the process."""

    def __init__(self, loop: Loop, file: int) -> None:
        super().__init__(loop)
        self._file = file
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._least = CHANGE // self._page
        self._pages = 0

    def look(self) -> None:
        pages = int(os.pread(self._file, 128, 0).split(None, 2)[1])
        if abs(pages - self._pages) >= self._least:
            self._pages = pages
            _MEMORY.record(pages * self._page)


class _OfDevice(_Memory):
    """What the allocator of the accelerator counts, on the host."""

    _seen = (0, 0, 0)

    def look(self) -> None:
        device = self._loop.device
        found = device.memory() if device is not None else None
        if found is None:
            return
        if any(abs(new - old) >= CHANGE for new, old in zip(found, self._seen, strict=True)):
            self._seen = found
            allocated, peak, reserved = found
            more = {"peak": peak, "reserved": reserved}
            self._loop.recorder.event("memory", allocated, None, more)
