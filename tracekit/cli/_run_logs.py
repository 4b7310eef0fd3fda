"""A launcher's words that were kept in a run: read with it, beside what its ranks recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.dataset import Run

__all__ = ["add_launcher_logs"]

_FACTS = ("job_event", "log", "log_mismatch", "log_missing")
"""What the records of ranks do not know: ends and sequence numbers they know better."""
_LARGEST = 64 << 20


def add_launcher_logs(run: Run) -> None:
    """Add what the logs of launchers tell of the attempts to the tables of a run."""
    for attempt in run.attempts:
        folder = run.path / f"attempt-{attempt.number:03d}"
        paths = [path for path in sorted(folder.glob("launcher*.log")) if _is_small(path)]
        if not paths:
            continue
        import pyarrow as pa
        import pyarrow.compute as pc

        from tracekit.adapters.text_logs import read_logs

        tables = read_logs(paths, run.run_id, names=lambda path: str(path.relative_to(run.path)))
        for name in ("events", "facts"):
            rows = tables.get(name)
            if rows is None:
                continue
            if name == "facts":
                rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(_FACTS)))
            place = rows.schema.get_field_index("attempt")
            number = pa.array([attempt.number] * len(rows), pa.int32())
            run.sources[name].append(rows.set_column(place, rows.schema.field(place), number))


def _is_small(path: Path) -> bool:
    return path.is_file() and 0 < path.stat().st_size <= _LARGEST
