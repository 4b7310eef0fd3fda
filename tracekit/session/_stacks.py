"""Letting the agent ask for the Python stacks of all threads by a signal.

``faulthandler`` writes them from C, so they come also when a thread holds the interpreter's lock
in a C call. The signal is taken only where nobody else has it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
from pathlib import Path
from typing import IO

__all__ = ["StackSignal"]


_SIGNAL = signal.SIGRTMIN + 12
_ours = False


class StackSignal:
    """The signal and the file the stacks go to; ``number`` is None where no signal was free."""

    def __init__(self, path: Path) -> None:
        global _ours
        self.path = path
        self.number: int | None = None
        self._file: IO[str] | None = None
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

    def move(self, path: Path) -> None:
        """Rename the file along with the journal it belongs to."""
        with contextlib.suppress(OSError):
            self.path.rename(path)
            self.path = path

    def close(self) -> None:
        """Ignore the signal from now on: one that is still under way must not kill the job."""
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
