"""What attaching returns: the way to put everything back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracekit.adapters.tensorflow._guard import guarded

__all__ = ["Handle"]


class Handle:
    """One thing that is traced; ``detach()`` puts back what was replaced for it."""

    def __init__(self, strategy: Any = None, dataset: Any = None) -> None:
        self.strategy = strategy
        """The strategy that is traced, also where ``trace_strategy`` made it."""
        self.dataset = dataset
        """The dataset that is traced."""
        self.undo: list[Callable[[], None]] = []

    def detach(self) -> None:
        """Put everything back; a second call does nothing."""
        undo, self.undo = self.undo, []
        for step in reversed(undo):
            guarded("detach")(step)()
