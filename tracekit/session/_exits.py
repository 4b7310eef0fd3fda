"""What a process that ends can still say of itself: the exception, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tracekit.recorder import Recorder

__all__ = ["before_child_exits", "note_exception", "note_exit"]

_LONGEST = 960


def note_exception(made: Recorder, error: BaseException | None = None) -> None:
    """Say which exception ended the process; at exit it is the one that the interpreter keeps."""
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return
    frame, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frame = f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}"
        traceback = traceback.tb_next
    made.fact(
        "exception",
        {"type": type(error).__name__, "message": _shortened(str(error)), "frame": frame},
    )


def _shortened(message: str) -> str:
    """Both ends of a long message: TensorFlow's begin with its own stack and end with the cause."""
    return message if len(message) <= _LONGEST else f"{message[:250]} … {message[-700:]}"


def note_exit(made: Recorder, error: BaseException | None) -> None:
    """Say how the process ends that ``error`` is about to end, ``SystemExit`` too."""
    if isinstance(error, SystemExit):
        if error.code not in (None, 0):
            made.fact("exit_code", error.code if isinstance(error.code, int) else 1)
            if error.__context__ is not None:
                note_exception(made, error.__context__)
    elif error is not None:
        note_exception(made, error)


def before_child_exits(call: Callable[[BaseException | None], None]) -> None:
    """Where ``multiprocessing`` made this process: call this at its end, with what ended it.

    Such a process may end without ``atexit``: a forked one always does.
    """
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, lambda: call(sys.exc_info()[1]), exitpriority=-100)
