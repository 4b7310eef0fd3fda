"""Which steps are exported live: by a rule that says the same on every rank, and slow ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, fields
from statistics import median

from tracekit.errors import UsageError

__all__ = ["NO_TRACES", "Chooser", "Rule"]

NO_TRACES = "none"
"""Instead of a rule: metrics alone are exported."""

_HISTORY = 50
_LEAST_HISTORY = 10
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Rule:
    """The first steps, every so many, those around a checkpoint, and slow ones.

    As text: ``all``, or a comma-separated list as in ``first=10,every=100,slow=2,checkpoints=1``;
    what is not named keeps its default, 0 turns a part off.
    """

    first: int = 10
    every: int = 100
    slow: float = 2.0
    """A step that takes so many times the median of the last 50 is exported by who sees it."""
    checkpoints: int = 1
    """Whether steps with a checkpoint, and those after them, are exported."""

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The rule that a text says. Raises ``UsageError``."""
        if text.strip().lower() == "all":
            return cls(every=1)
        known = {field.name: float if field.name == "slow" else int for field in fields(cls)}
        given: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = (word.strip() for word in part.partition("="))
            try:
                given[name] = known[name](number)
            except (KeyError, ValueError) as error:
                raise UsageError(
                    f"{part[:40]!r} is no part of a rule like first=10,every=100,slow=2"
                ) from error
            if not 0 <= given[name] < 1 << 53:
                raise UsageError(f"{part[:40]!r}: {name} cannot be that")
        return cls(**given)  # type: ignore[arg-type]

    def text(self) -> str:
        """The rule as text."""
        return ",".join(f"{field.name}={getattr(self, field.name):g}" for field in fields(self))

    def reason(self, step: int) -> str | None:
        """Why every rank exports this step."""
        if step < self.first:
            return "first"
        return "every" if self.every and step % self.every == 0 else None


class Chooser:
    """Decides step by step, in their order."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._times: deque[int] = deque(maxlen=_HISTORY)
        self._after_checkpoint = False
        self._chosen: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)

    def known(self, step: int) -> str | None:
        """Why a step was exported that was decided on before."""
        return self.rule.reason(step) or dict(self._chosen).get(step)

    def reason(self, step: int, duration_ns: int, kinds: Collection[str]) -> str | None:
        """Why the step is exported; ``kinds`` are those of its spans."""
        rule, times = self.rule, self._times
        why = rule.reason(step)
        if rule.checkpoints:
            saves = "checkpoint" in kinds
            if why is None and (saves or self._after_checkpoint):
                why = "checkpoint"
            self._after_checkpoint = saves
        if why is None and rule.slow and len(times) >= _LEAST_HISTORY:
            why = "slow" if duration_ns > rule.slow * median(times) else None
        times.append(duration_ns)
        if why is not None:
            self._chosen.append((step, why))
        return why
