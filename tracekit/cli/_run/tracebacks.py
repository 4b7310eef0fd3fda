"""What is printed of an exception that ends the script, without the frames of tracekit.

They lie around the script, since we run it, and in the middle, where a function is traced; some
libraries write them into the text of their errors as well.
"""

from __future__ import annotations

import builtins
import re
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from tracekit.errors import TracekitError

__all__ = ["hide_ourselves"]

_PACKAGE = re.escape(str(Path(__file__).absolute().parents[2]))
_ENTRY = re.compile(
    rf'^( *)File "{_PACKAGE}/[^"\n]*", line \d+, in [^\n]*\n(?:\1 +\S[^\n]*\n|\n)?', re.MULTILINE
)
"""A frame of ours in a text, with its line of code or an empty one."""
_GROUPS: Any = getattr(builtins, "BaseExceptionGroup", ())


def hide_ourselves(outermost: FrameType) -> None:
    """Let ``sys.excepthook`` see nothing of tracekit; ``outermost`` is the frame above the script.

    To be called when an exception is about to leave the script. The interpreter goes on as it
    would, so that the hook of the script, exit codes and signals are as without us.
    """
    hook = sys.excepthook

    def without_us(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        try:
            _clean(error, outermost, set())
            traceback = error.__traceback__
            sys.last_traceback = traceback
            sys.excepthook = hook
        except Exception:
            pass  # what is shown then has a few lines too many
        hook(kind, error, traceback)

    sys.excepthook = without_us


def _clean(error: BaseException, outermost: FrameType, seen: set[int]) -> None:
    """Clean an exception, and those that it came from or holds."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without(one.__traceback__, outermost, isinstance(one, TracekitError))
        _clean_text(one)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, _GROUPS):
            waiting += one.exceptions


def _clean_text(error: BaseException) -> None:
    """Take frames of ours out of what an error says, as TensorFlow tells where a graph was made."""
    if any(isinstance(one, str) and _ENTRY.search(one) for one in error.args):
        error.args = tuple(
            _ENTRY.sub("", one) if isinstance(one, str) else one for one in error.args
        )
    message = getattr(error, "_message", None)  # what TensorFlow's own errors print
    if isinstance(message, str) and _ENTRY.search(message):
        error._message = _ENTRY.sub("", message)  # type: ignore[attr-defined]


def _without(
    traceback: TracebackType | None, outermost: FrameType, ours: bool
) -> TracebackType | None:
    """A traceback from below ``outermost``, without frames of tracekit; ``ours`` keeps those."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        if traceback.tb_frame is outermost:
            entries.clear()
        traceback = traceback.tb_next
    if not ours:
        entries = [entry for entry in entries if not _is_ours(entry.tb_frame)]
    kept: TracebackType | None = None
    for entry in reversed(entries):
        entry.tb_next = kept
        kept = entry
    return kept


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name == "tracekit" or name.startswith("tracekit.")
