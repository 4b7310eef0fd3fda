"""The one place where errors become exit codes and a line on stderr.

0: done. 1: findings at or above ``--fail-on``. 2: wrong usage, or input that cannot be read.
130: interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.cli._terminal import tell
from tracekit.errors import MissingDependency, TracekitError

if TYPE_CHECKING:
    from tracekit.cli._run.target import Target

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``tracekit`` with these arguments, else the process's; returns the exit code.

    With ``run`` this process becomes the script's, and whatever the script raises passes through.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        target = _target(given)
        if target is None:
            return _run(given)
    except TracekitError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of a pipe, as in `| head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except OSError as error:
        return _fail(f"{error.filename or 'tracekit'}: {error.strerror or error}", 2)
    # Out here, since what a script raises is the script's, and no error of the command line.
    from tracekit.cli._run.launch import run_target

    return run_target(target)


def _target(arguments: list[str]) -> Target | None:
    """What ``tracekit run`` is to run, read without what the job may not have installed."""
    if arguments[:1] != ["run"]:
        return None
    from tracekit.cli._run.target import parse

    return parse(arguments[1:])


def _run(arguments: list[str]) -> int:
    try:
        import typer

        from tracekit.cli._app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "click", "rich"):
            raise
        raise MissingDependency(str(error.name), "analyze") from None
    # typer brings its own copy of click, or uses the installed one: ask it which.
    bases: Iterator[Any] = iter(typer.BadParameter.__mro__)
    wrong_usage: type[Exception] = next(c for c in bases if c.__name__ == "ClickException")
    try:
        code = app(arguments or ["--help"], prog_name="tracekit", standalone_mode=False)
        sys.stdout.flush()
    except wrong_usage as error:
        message = getattr(error, "format_message", error.__str__)()
        return _fail(f"{message} (see tracekit --help)", 2)
    except typer.Abort:
        code = _INTERRUPTED
    if code == _INTERRUPTED:  # typer may swallow a KeyboardInterrupt
        raise KeyboardInterrupt
    if not arguments:
        return 2
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    tell(message)
    return code
