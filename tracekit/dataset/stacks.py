"""What ``faulthandler`` writes: the stacks of a rank that was asked for them, or that is dying."""

from __future__ import annotations

import os
import re
from typing import Any

__all__ = ["dying_words", "parse_stacks"]

_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*?)\])? \(most recent call")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_FATAL = "Fatal Python error: "
_OURS = f"tracekit{os.sep}journal{os.sep}writer.py:"
_SIGNALS = {
    "Aborted": 6,
    "Bus error": 7,
    "Floating-point exception": 8,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Segmentation fault": 11,
}


def parse_stacks(text: str) -> list[dict[str, Any]]:
    """The job's threads in such a text, their frames the innermost first."""
    return [thread for thread in _threads(text) if not _is_ours(thread)]


def dying_words(text: str) -> dict[str, Any]:
    """The signal of which a rank died and the threads it had then; empty where none is told.

    A process that was forked from the rank writes into the same file. It has no journal's thread,
    by which the rank's own word is known.
    """
    for part in reversed(text.split(_FATAL)[1:]):
        threads = _threads(part)
        number = _SIGNALS.get(part.partition("\n")[0].strip())
        if number is not None and any(map(_is_ours, threads)):
            kept = [thread for thread in threads if not _is_ours(thread)]
            return {"state": "signal", "signal": number, "source": "stacks", "threads": kept}
    return {}


def _is_ours(thread: dict[str, Any]) -> bool:
    return any(_OURS in frame for frame in thread["frames"])


def _threads(text: str) -> list[dict[str, Any]]:
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
    return threads
