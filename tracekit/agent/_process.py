"""What the kernel and ``faulthandler`` say about a process: its state and its stacks."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from tracekit.journal.process import process_state

__all__ = ["ask_for_stacks", "look_at", "parse_stacks"]

_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*?)\])? \(most recent call")
_OURS = f"tracekit{os.sep}journal{os.sep}writer.py:"
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


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


def parse_stacks(text: str) -> list[dict[str, Any]]:
    """Read what ``faulthandler`` wrote: the job's threads, their frames the innermost first."""
    threads: list[dict[str, Any]] = []
    for line in text.splitlines():
        head = _THREAD.match(line)
        if head:
            threads.append(
                {
                    "name": head.group(3) or head.group(2),
                    "current": head.group(1).startswith("Current"),
                    "frames": [],
                }
            )
            continue
        frame = _FRAME.match(line)
        if frame and threads:
            threads[-1]["frames"].append(f"{frame.group(1)}:{frame.group(2)} {frame.group(3)}")
    return [thread for thread in threads if not any(_OURS in frame for frame in thread["frames"])]
