"""Python stacks of all threads: when the agent asks by a signal, and when the process dies of one.

``faulthandler`` writes them from C, so they come also when a thread holds the interpreter's lock
in a C call. Signals are taken only where nobody else has them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import weakref
from pathlib import Path
from typing import IO

__all__ = ["StackSignal"]


_SIGNAL = signal.SIGRTMIN + 12
_FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)
_ours = False


class StackSignal:
    """The signal and the file the stacks go to; ``number`` is None where no signal was free."""

    def __init__(self, path: Path) -> None:
        global _ours
        self.path = path
        self.number: int | None = None
        self._file: IO[str] | None = None
        self._dying: weakref.ref[_Dying] | None = None
        # Ignored is free too: close() leaves it so, and children inherit it.
        free = signal.getsignal(_SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN)
        if not free and not _ours:
            return
        try:
            self._file = open(path, "x")  # noqa: SIM115
            faulthandler.register(_SIGNAL, file=self._file, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError, AttributeError):
            return
        self.number = int(_SIGNAL)
        _ours = True
        self._await_death()

    def _await_death(self) -> None:
        """Have the stacks written when the process dies of a fault or of abort().

        Who handles such signals keeps them: a Java machine in the process lives with them.
        """
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            caught = _CAUGHT.search(Path("/proc/self/status").read_text())
            mask = int(caught[1], 16) if caught else -1
            if faulthandler.is_enabled() or any(mask >> number - 1 & 1 for number in _FATAL):
                return
            file = _Dying(self.path)
            faulthandler.enable(file, all_threads=True)
            self._dying = weakref.ref(file)  # faulthandler alone keeps it, as long as it is ours

    def move(self, path: Path) -> None:
        """Rename the file along with the journal it belongs to."""
        with contextlib.suppress(OSError):
            self.path.rename(path)
            self.path = path

    def close(self) -> None:
        """Ignore the signal from now on: one that is still under way must not kill the job."""
        if self._dying is not None and self._dying() is not None:
            faulthandler.disable()
        self._dying = None
        if self.number is None or self._file is None:
            return
        try:
            signal.signal(_SIGNAL, signal.SIG_IGN)
        except ValueError:
            return  # not the main thread: faulthandler keeps the signal and the file
        faulthandler.unregister(_SIGNAL)
        with contextlib.suppress(ValueError):
            signal.signal(_SIGNAL, signal.SIG_IGN)
        self._file.close()
        self.number = self._file = None
        with contextlib.suppress(OSError):
            if self.path.stat().st_size == 0:
                self.path.unlink()


class _Dying:
    """What ``faulthandler`` needs of a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The number that is written to."""
        return self._file

    def flush(self) -> None:
        """Nothing waits to be written."""

    def __del__(self) -> None:
        os.close(self._file)
