"""Scripts that start themselves again, once for each of the other ranks, as Lightning's do.

They call the interpreter with their own path, so the other ranks would run without tracekit.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracekit import recorder

__all__ = ["tell_ranks"]

_AGAIN = str(Path(__file__).with_name("again.py"))


def tell_ranks() -> None:
    """Let the ranks that this script starts by calling itself be traced, too."""
    original = subprocess.Popen.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            args = (_traced(args[0], kwargs.get("env")), *args[1:])
        elif "args" in kwargs:
            kwargs["args"] = _traced(kwargs["args"], kwargs.get("env"))
        original(self, *args, **kwargs)

    def put_back() -> None:
        if vars(subprocess.Popen).get("__init__") is __init__:
            subprocess.Popen.__init__ = original  # type: ignore[method-assign]

    subprocess.Popen.__init__ = __init__  # type: ignore[method-assign]
    recorder.when_stopped(put_back)


def _traced(command: Any, environment: Any) -> Any:
    """The command, with us in front of this very script where it is started as a rank."""
    try:
        if isinstance(environment, Mapping) and "LOCAL_RANK" in environment:
            words = list(command)
            if words[0] == sys.executable and _is_this_script(words[1:]):
                return [words[0], _AGAIN, *words[1:]]
    except Exception:
        pass  # an unusual command is none of ours
    return command


def _is_this_script(words: list[Any]) -> bool:
    main = sys.modules["__main__"]
    spec = main.__spec__
    if spec is not None:
        return words[:2] == ["-m", spec.name]
    return os.path.abspath(str(words[0])) == os.path.abspath(str(main.__file__))
