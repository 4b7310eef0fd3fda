"""Foreign files on the command line: found by their content, read into a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tracekit.cli._terminal import progress, tell
from tracekit.errors import InputError, TracekitError

if TYPE_CHECKING:
    from tracekit.adapters._reading import Found, Importer, Intake
    from tracekit.dataset import Coverage

__all__ = ["Imported", "import_into", "imported", "is_run", "look_into"]

_MOST_LINES = 10
_RUN = re.compile(r"attempt-\d+|run\.json|spans")


def is_run(path: Path) -> bool:
    """Whether a path is a run directory, in whatever state."""
    try:
        return any(_RUN.fullmatch(inner.name) for inner in path.iterdir())
    except OSError:
        return False


@dataclass(slots=True)
class Looked:
    """What is in some paths that are no runs."""

    paths: tuple[Path, ...]
    known: dict[str, Importer]
    found: Found


@dataclass(slots=True)
class Imported:
    """A run that was made of foreign files."""

    run_dir: Path
    found: Found
    intake: Intake

    @property
    def told(self) -> str:
        """What was read, in one line."""
        intake = self.intake
        kinds = sorted(set(intake.read.values()))
        rows = ", ".join(f"{count} {table}" for table, count in sorted(intake.rows.items()))
        return (
            f"{len(intake.read)} of {self.found.files} files read ({', '.join(kinds)},"
            f" {intake.size / 1e6:.1f} MB): {rows}"
        )

    def coverage(self, of_run: Coverage) -> Coverage:
        """What was found and what was not used: of the foreign files, not of those in the run."""
        return replace(
            of_run,
            files=self.found.files,
            skipped=(*self.intake.skipped, *of_run.skipped),
        )


def look_into(paths: Sequence[Path]) -> Looked:
    """Which foreign files are in the paths. Raises ``InputError`` for a path that is not there."""
    from tracekit.adapters._reading import find_files, importers

    known = importers()
    return Looked(tuple(paths), known, find_files(paths, known))


def import_into(looked: Looked, run_dir: Path) -> Imported:
    """Read what was found into an empty directory, and say on stderr what could not be read.

    Raises ``InputError`` where nothing could.
    """
    from tracekit.adapters._reading import Intake, read_files

    intake = Intake(run_dir)
    with progress() as show:
        read_files(looked.found, looked.known, intake, show)
    unknown = [path for path in looked.found.unknown if path in looked.paths]
    intake.skipped += [(path, "not a file of a known kind") for path in unknown]
    if not intake.read:
        raise _nothing(looked, intake)
    lines = [f"{path}: {reason}; skipped" for path, reason in intake.skipped]
    lines += [f"{path}: {note}" for path, note in intake.notes]
    for line in lines[:_MOST_LINES]:
        tell(line)
    if len(lines) > _MOST_LINES:
        tell(f"and {len(lines) - _MOST_LINES} more such lines")
    label = looked.paths[0].resolve().name if looked.paths else "import"
    value = {"uid": intake.run_id, "label": label, "imported": True}
    (run_dir / "run.json").write_text(json.dumps(value))
    return Imported(run_dir, looked.found, intake)


def _nothing(looked: Looked, intake: Intake) -> TracekitError:
    if not intake.skipped:
        kinds = ", ".join(looked.known)
        return InputError(looked.paths[0], f"no file of a known kind is in it ({kinds})")
    (path, reason), more = intake.skipped[0], len(intake.skipped) - 1
    return InputError(path, reason + (f" (and {more} more like it)" if more else ""))


@contextmanager
def imported(looked: Looked) -> Iterator[Imported]:
    """A run of what was found, for as long as it is looked at."""
    with TemporaryDirectory(prefix="tracekit-") as folder:
        yield import_into(looked, Path(folder))
