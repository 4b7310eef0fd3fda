"""Profiler windows that no agent lived to read: taken into the run by whoever looks at it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["adopt_windows"]

_ATTEMPT = re.compile(r"attempt-(\d+)")


def adopt_windows(run: Path) -> list[tuple[Path, str]]:
    """Take the windows of all attempts into a run; those that cannot be used, and why.

    Where nothing can be written the run is looked at without them.
    """
    try:
        attempts = [
            int(match[1])
            for path in run.iterdir()
            if (match := _ATTEMPT.fullmatch(path.name)) and (path / "xplane").is_dir()
        ]
    except OSError:
        return []
    if not attempts:
        return []
    from tracekit.adapters.xplane import adopt

    return [skipped for attempt in attempts for skipped in adopt(run, attempt).skipped]
