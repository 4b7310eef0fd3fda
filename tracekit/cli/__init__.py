"""The command line: one sub-command a module, and one place where errors become exit codes."""

from tracekit.cli._main import main

__all__ = ["main"]
