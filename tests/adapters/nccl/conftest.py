"""The command line, for what is shown through it."""

from __future__ import annotations

from tests.cli.conftest import call

__all__ = ["call"]
