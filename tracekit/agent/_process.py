"""What the kernel says about a process, and asking it for its stacks."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from tracekit.journal.process import process_state

__all__ = ["ask_for_stacks", "look_at"]

_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)


def look_at(pid: int) -> dict[str, Any]:
    """The state letter of a process, where it waits in the kernel, its threads in state D."""
    threads = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                threads += (task / "stat").read_text().rpartition(")")[2].split()[:1] == ["D"]
    wchan = None
    with contextlib.suppress(OSError):
        wchan = Path(f"/proc/{pid}/wchan").read_text().strip("0 \n") or None
    return {"state": process_state(pid), "wchan": wchan, "threads_in_d": threads}


def ask_for_stacks(pid: int, number: int) -> bool:
    """Send the signal that ``faulthandler`` answers; only where a handler really is in place."""
    try:
        caught = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
        if caught is None or not int(caught[1], 16) >> (number - 1) & 1:
            return False
        os.kill(pid, number)
    except OSError:
        return False
    return True
