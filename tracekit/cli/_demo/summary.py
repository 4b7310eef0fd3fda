"""What torchrun says about the ranks that failed, read from its output."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["failures"]

_FAILURE = re.compile(
    r"^ *rank *: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r" *exitcode *: (?P<exitcode>-?\d+) \(pid: (?P<pid>\d+)\)",
    re.MULTILINE,
)


def failures(output: str) -> list[dict[str, Any]]:
    """One object a rank that torchrun's summary names, in the order of ranks."""
    found = {}
    for match in _FAILURE.finditer(output):
        rank, pid, code = (int(match[name]) for name in ("rank", "pid", "exitcode"))
        found[rank] = {
            "rank": rank,
            "pid": pid,
            "exitcode": code,
            "signal": -code if code < 0 else None,
        }
    return [found[rank] for rank in sorted(found)]
