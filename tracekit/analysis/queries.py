"""The questions to the data: one SQL file each, with whole numbers filled in."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

__all__ = ["query"]

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_COMMENT = re.compile(r"--[^\n]*")


def query(name: str, **parameters: int) -> str:
    """The text of ``sql/<name>.sql`` with its parameters filled in."""
    return _PARAMETER.sub(lambda match: str(int(parameters[match[1]])), _text(name))


@cache
def _text(name: str) -> str:
    source = (files("tracekit.analysis") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return _COMMENT.sub("", source).strip()
