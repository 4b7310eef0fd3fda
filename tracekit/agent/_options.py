"""What an agent is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["AgentOptions"]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent serves: a run, an attempt, where its host's journals lie.

    ``host`` is the host's eight digits in file names, ``ranks`` how many ranks are expected on
    it; ``stall_s`` replaces the least time after which a step counts as stalled. ``otlp`` is the
    rule by which steps are exported live, ``none``: metrics alone, None: nothing is.
    """

    run_dir: Path
    host: str
    attempt: int = 0
    ranks: int = 1
    journals: tuple[Path, ...] = ()
    stall_s: float | None = None
    otlp: str | None = None
