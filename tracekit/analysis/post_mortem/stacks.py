"""Reading Python stacks: the innermost frame that is the user's, and what two looks tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["differ", "innermost", "is_users", "user_frame"]

_NOT_THE_USERS = re.compile(
    r"""
    /(site|dist)-packages/
    | /lib/python3[^/]*/            # the standard library
    | ^<                            # <frozen importlib>, <string>
    | /torch/
    | /tracekit/(recorder|journal|session|agent|dataset|model|adapters)/
    | (^|/)adapters/[a-z_]+/_       # ours, behind the link
    """,
    re.VERBOSE,
)


def is_users(frame: str) -> bool:
    """Whether a frame ("file:line function") is of the user's own code."""
    return not _NOT_THE_USERS.search(frame)


def user_frame(stack: Mapping[str, Any]) -> str | None:
    """The innermost frame of the user's code: of the thread that trains, else of any."""
    for frames in _threads(stack):
        for frame in frames:
            if is_users(frame):
                return frame
    return None


def innermost(stack: Mapping[str, Any]) -> str | None:
    """The innermost frame of the thread that trains, whosever it is."""
    return next((frames[0] for frames in _threads(stack) if frames), None)


def differ(stacks: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a rank moved between two looks; None where it was not seen twice."""
    seen = [frames for stack in stacks for frames in [_threads(stack)] if frames and frames[0]]
    return seen[0][0] != seen[-1][0] if len(seen) > 1 else None


def _threads(stack: Mapping[str, Any]) -> list[list[str]]:
    """The frames of each thread, that of the main thread first."""
    threads = [t for t in stack.get("threads") or () if isinstance(t, Mapping)]
    threads.sort(key=lambda t: (t.get("name") != "MainThread", not t.get("current")))
    return [[str(frame) for frame in t.get("frames") or ()] for t in threads]
