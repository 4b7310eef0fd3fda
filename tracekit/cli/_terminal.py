"""What is said to a person at a terminal: a line of progress, a line at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress", "tell"]


def tell(message: str) -> None:
    """Say something in one line on stderr; stdout belongs to the result."""
    print(f"tracekit: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """One line that says what is going on, on a terminal only; gone at the end."""
    if not sys.stderr.isatty():
        yield lambda message: None
        return
    try:
        yield lambda message: print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
