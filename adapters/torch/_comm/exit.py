"""The end of a process whose backend has threads of its own."""

from __future__ import annotations

import atexit
import os
import threading
import time

__all__ = ["settle_at_exit"]

LOOK_S = 0.005
CALM_LOOKS = 4
MOST_S = 0.2

_registered = False


def settle_at_exit() -> None:
    """From now on, give the threads of the backend the interpreter once more at exit.

    A work of gloo keeps the context that ``backward`` puts into its thread, and the callbacks of
    Python; a thread of gloo drops both a moment after the call is over, and needs the interpreter
    for it. One that asks when that is already closing down aborts the process ("terminate called
    without an active exception"). PyTorch has this race with and without us.
    """
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_settle)


def _settle() -> None:
    """Sleep until no other thread has been about to run for a while."""
    end = time.monotonic() + MOST_S
    calm = 0
    while calm < CALM_LOOKS and time.monotonic() < end:
        time.sleep(LOOK_S)
        calm = 0 if _others_run() else calm + 1


def _others_run() -> bool:
    """Whether a thread of this process has a core, or waits for one; False where nobody knows."""
    mine = threading.get_native_id()
    try:
        return any(_runs(task) for task in os.listdir("/proc/self/task") if int(task) != mine)
    except (OSError, ValueError):
        return False


def _runs(task: str) -> bool:
    try:
        with open(f"/proc/self/task/{task}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"R"
    except OSError:
        return False  # it has ended
