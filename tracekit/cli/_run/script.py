"""Runs a script or a module in this process as ``python`` itself would.

``sys.argv``, ``sys.path[0]``, ``__main__``, the exit code, and what is printed of an exception
that nobody catches are as without tracekit.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from types import CodeType

from tracekit.cli._run.target import Target
from tracekit.cli._run.tracebacks import hide_ourselves
from tracekit.session import current_session

__all__ = ["prepare", "run"]


def prepare(target: Target) -> None:
    """Set ``sys.argv`` and ``sys.path[0]`` as ``python`` does before it runs the target."""
    if target.module is not None:
        sys.argv = ["-m", *target.arguments]  # until the module is found, then its path
        _replace_path(os.getcwd())
        return
    assert target.script is not None
    sys.argv = [target.script, *target.arguments]
    if _is_archive(target.script):
        sys.path.insert(0, os.path.abspath(target.script))
        if _path_is_ours():
            del sys.path[1]
    else:
        _replace_path(os.path.dirname(os.path.realpath(target.script)))


def run(target: Target) -> int:
    """Run the target; whatever it raises passes through, ``SystemExit`` too."""
    main = types.ModuleType("__main__")
    names = vars(main)
    if sys.version_info < (3, 14):  # since then annotations are made when they are asked for
        names.setdefault("__annotations__", {})
    names["__builtins__"] = builtins
    sys.modules["__main__"] = main  # pickle, multiprocessing and the script itself find this one
    try:
        if target.module is not None:
            runpy._run_module_as_main(target.module)  # type: ignore[attr-defined]
        elif _is_archive(str(target.script)):
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        else:
            path = os.path.join(os.getcwd(), str(target.script))
            loader = SourceFileLoader("__main__", path)
            names.update(__file__=path, __cached__=None, __loader__=loader)
            exec(_code(path), names)
    except BaseException as error:
        session = current_session()
        if session is not None and isinstance(error, SystemExit):
            session.note_exit(error)
        hide_ourselves(sys._getframe())
        raise
    return 0


def _code(path: str) -> CodeType:
    with io.open_code(path) as file:
        compiled: CodeType | None = pkgutil.read_code(file)
    if compiled is not None:
        return compiled
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _is_archive(script: str) -> bool:
    """Whether it is a folder or a zip file with a ``__main__`` in it."""
    if script.endswith(".py"):
        return False
    import zipfile

    return os.path.isdir(script) or zipfile.is_zipfile(script)


def _path_is_ours() -> bool:
    """Whether Python has put a folder for tracekit itself at the beginning of ``sys.path``."""
    return not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def _replace_path(folder: str) -> None:
    if _path_is_ours():
        sys.path[:1] = [folder]
