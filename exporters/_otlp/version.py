"""How tracekit presents itself to servers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["USER_AGENT", "VERSION"]

try:
    VERSION = version("tracekit-blackbox")
except PackageNotFoundError:  # a checkout that is on the path, not installed
    VERSION = ""
USER_AGENT = f"tracekit/{VERSION}".rstrip("/")
