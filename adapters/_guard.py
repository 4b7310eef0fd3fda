"""Keeps our own mistakes out of the training: they are counted and said once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tracekit import recorder

__all__ = ["Guard"]

P = ParamSpec("P")
R = TypeVar("R")


class Guard:
    """Counts the failures of one adapter, by part."""

    def __init__(self, adapter: str) -> None:
        self.adapter = adapter
        self.failures: Counter[str] = Counter()
        """How often each part failed; the training went on every time."""

    def failed(self, part: str, error: Exception) -> None:
        """Count a failure of ours; the first one of each part is said."""
        self.failures[part] += 1
        if self.failures[part] == 1:
            recorder.say_once(
                f"{self.adapter} adapter: {part} failed ({type(error).__name__}: {error});"
                " training goes on, these spans are missing"
            )

    def guarded(self, part: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Make a function of ours unable to raise; after a failure it returns None."""

        def wrap(function: Callable[P, R]) -> Callable[P, R | None]:
            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self.failed(part, error)
                    return None

            return call

        return wrap
