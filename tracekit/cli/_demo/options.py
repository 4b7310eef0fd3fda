"""What the demo was asked for, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.errors import UsageError

__all__ = ["KINDS", "Fault", "Training", "parse_faults"]

KINDS = ("none", "data", "forward", "backward", "optimizer", "checkpoint", "gc", "hang", "kill")
_FATAL = ("hang", "kill")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with one rank."""

    kind: str
    rank: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.rank}"


@dataclass(frozen=True, slots=True)
class Training:
    """The training the demo runs."""

    ranks: int = 4
    steps: int = 60
    faults: tuple[Fault, ...] = ()
    size: float = 0.4
    every: int = 4
    batchnorm: bool = True

    @property
    def hangs(self) -> bool:
        return any(fault.kind == "hang" for fault in self.faults)

    def arguments(self) -> list[str]:
        """The worker's command line."""
        arguments = ["--steps", str(self.steps), "--size", str(self.size)]
        arguments += ["--every", str(self.every)]
        for fault in self.faults:
            arguments += ["--fault", str(fault)]
        return arguments if self.batchnorm else [*arguments, "--no-batchnorm"]


def parse_faults(texts: Sequence[str], ranks: int) -> tuple[Fault, ...]:
    """Read ``KIND:RANK``; ``none`` needs no rank. Raises ``UsageError``."""
    faults = []
    for text in texts:
        kind, _, who = text.partition(":")
        if kind not in KINDS:
            raise UsageError(f"--fault {text}: the kinds are {' '.join(KINDS)}")
        if kind == "none" and (not who or who.isdecimal()):
            continue
        if not who.isdecimal():
            raise UsageError(f"--fault {text}: say which rank, as in {kind}:2")
        if int(who) >= ranks:
            raise UsageError(f"--fault {text}: the ranks are 0 to {ranks - 1}")
        faults.append(Fault(kind, int(who)))
    if sum(fault.kind in _FATAL for fault in faults) > 1:
        raise UsageError("--fault: a run ends once, so one of hang and kill at most")
    return tuple(dict.fromkeys(faults))
