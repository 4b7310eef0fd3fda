"""What the analysis knows of a run that its export shows: who is accused, how clocks differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracekit.cli._terminal import tell
from tracekit.dataset import Run
from tracekit.errors import MissingDependency
from tracekit.model import Correction

__all__ = ["Judged", "judge"]


class Judged(NamedTuple):
    """The cause for each rank that is accused, and what puts each rank on one clock."""

    stragglers: Mapping[int, str]
    corrections: Mapping[int, Sequence[Correction]]


def judge(run: Run) -> Judged:
    """Analyze a run; without the extra for it, that is said and nothing is known."""
    from tracekit.analysis import analyze

    try:
        from tracekit.dataset.engine import DuckDB

        engine = DuckDB()
    except MissingDependency as error:
        tell(f"no rank is marked as a straggler, no clock compared: {error}")
        return Judged({}, {})
    with engine:
        for name, source in run.sources.items():
            engine.register(name, source)
        found = analyze(engine, run.coverage)
    accused = {one.rank: one.cause or "unknown" for one in found.stragglers if one.rank is not None}
    return Judged(accused, found.details.get("corrections", {}))
