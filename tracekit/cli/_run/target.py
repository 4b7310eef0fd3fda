"""What ``tracekit run`` was asked to run: its own options, and what belongs to the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import InputError, UsageError

__all__ = ["Target", "parse"]

_OPTIONS = {"-o": "directory", "--dir": "directory", "--run": "label", "-m": "module"}

_NCCL_LOG = "--nccl-log"


@dataclass(frozen=True, slots=True)
class Target:
    """A script or a module, its arguments, and where the run is to lie."""

    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    directory: str | None = None
    """Where runs lie; else ``TRACEKIT_DIR``, else ``runs``."""
    label: str | None = None
    """What the run is called; else ``TRACEKIT_RUN``, else the script's name."""
    nccl_log: bool = False
    """Whether NCCL's log goes into the run."""


def parse(arguments: Sequence[str]) -> Target | None:
    """Read what follows ``tracekit run``; None when it asks for help.

    All that follows the script or the module is the script's, options too. Raises ``UsageError``,
    and ``InputError`` for a script that is not there.
    """
    given: dict[str, str] = {}
    nccl_log = False
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-" and "module" not in given:
        word = rest.pop(0)
        if word == "--help":
            return None
        if word == "--":
            break
        if word == _NCCL_LOG:
            nccl_log = True
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else _short(word)
        if name not in _OPTIONS:
            raise UsageError(f"run: there is no option {word} (see tracekit run --help)")
        if not equals:
            if not rest:
                raise UsageError(f"run: {name} needs a value (see tracekit run --help)")
            value = rest.pop(0)
        given[_OPTIONS[name]] = value
    if "module" not in given:
        if not rest:
            raise UsageError("run: say which script, or -m which module (see tracekit run --help)")
        given["script"] = rest.pop(0)
        _check(given["script"])
    return Target(
        script=given.get("script"),
        module=given.get("module"),
        arguments=tuple(rest),
        directory=given.get("directory"),
        label=given.get("label"),
        nccl_log=nccl_log,
    )


def _short(word: str) -> tuple[str, str, str]:
    """``-oDIR`` is ``-o DIR``."""
    return word[:2], word[2:], word[2:]


def _check(script: str) -> None:
    path = Path(script)
    if script == "-":
        raise UsageError("run: a script on stdin cannot be run; write it to a file")
    try:
        path.stat()
    except OSError as error:
        raise InputError(script, error.strerror or str(error)) from None
    if path.is_dir() and not (path / "__main__.py").exists():
        raise InputError(script, "a directory without __main__.py")
