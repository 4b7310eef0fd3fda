"""The profiler windows of a running job become parts of its run, each window once.

A window's part has a name that follows from the window, and a file is published under its name
or not at all. A part that a compaction has taken over is found by that name in the compacted
file; if it were written once more it would be superseded at once. So this may be killed between
any two instructions, and several processes may do it at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.adapters.xplane._importer import replicas_of
from tracekit.adapters.xplane._profile import Profile, read_profile
from tracekit.adapters.xplane._rows import Owner, group_name, span_rows
from tracekit.adapters.xplane._space import open_space
from tracekit.adapters.xplane._steps import Step, steps_of
from tracekit.dataset.conversion import run_id_of
from tracekit.dataset.facts import FactRow, table_of
from tracekit.dataset.parts import Held, part_folder, read_footer, write_file
from tracekit.errors import TracekitError

__all__ = ["Adopted", "adopt"]

_STEM = re.compile(r"rank-(\d{5,})\.([^-]+)-(\d+)")
_FIRST_ID = 1 << 40
"""Span ids of windows lie beyond all that a rank counts itself, and apart from each other."""
_APART = 16
_OFF_NS = 60_000_000_000
"""So far a profile's times may lie outside of its window."""
_ON_CONTENT = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
_KEPT = 4
_MARK = "adopted"
"""A file that saves the look into the run; without it nothing is written twice either."""


@dataclass(slots=True)
class Adopted:
    """What came of the windows that were found."""

    windows: list[Path] = field(default_factory=list)
    """Those whose spans are in the run now and were not before."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Those that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class _Window:
    folder: Path
    attempt: int
    rank: int
    process: str
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    shift_ns: int
    steps: tuple[Step, ...]

    @property
    def part(self) -> str:
        """The name of its part; another window never has it."""
        named = f"{self.folder.parent.name}/{self.folder.name}"
        digest = blake2b(named.encode(), digest_size=4).hexdigest()
        return f"part-xplane-{self.process}-{self.first_step:010d}-{digest}.parquet"


def adopt(
    run_dir: Path, attempt: int, host: str | None = None, done: set[Path] | None = None
) -> Adopted:
    """Write the spans of finished windows that the run does not have yet.

    With ``host``, its eight digits, only the windows of that host are looked at. Those in
    ``done`` are passed over, and all that were looked at are added to it: a long run has many.
    Costs one look at a folder when there is nothing. Of the newest windows of a rank the profiles
    stay where they are, for other tools to open.
    """
    adopted = Adopted()
    top = run_dir / f"attempt-{attempt:03d}" / "xplane"
    for folder in _finished(top, host):
        if done is not None and folder in done:
            continue
        try:
            if not (folder / _MARK).exists():
                if _adopt(run_dir, _window(folder, attempt)):
                    adopted.windows.append(folder)
                (folder / _MARK).touch()
                _thin_out(folder.parent)
        except BlockingIOError:
            continue  # another process is at it, and may be killed there: look again
        except (OSError, TracekitError, pa.ArrowException, *_ON_CONTENT) as error:
            adopted.skipped.append((folder, _reason(error)))
        if done is not None:
            done.add(folder)
    return adopted


def _reason(error: Exception) -> str:
    said = (getattr(error, "strerror", None) or str(error)) or type(error).__name__
    return " ".join(said.split())


def _finished(top: Path, host: str | None) -> Iterator[Path]:
    """The folders of windows that were written to their end, in order."""
    try:
        stems = sorted(os.listdir(top))
    except OSError:
        return
    for stem in stems:
        match = _STEM.fullmatch(stem)
        if match is None or (host is not None and match[2] != host):
            continue
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(top / stem)):
                if name.startswith("window-") and (top / stem / name / "window.json").is_file():
                    yield top / stem / name


def _window(folder: Path, attempt: int) -> _Window:
    """What ``window.json`` says. Raises ``ValueError``, ``TypeError`` or ``KeyError``."""
    told: Any = json.loads((folder / "window.json").read_bytes())
    match = _STEM.fullmatch(folder.parent.name)
    if not isinstance(told, dict) or match is None:
        raise ValueError("window.json is no object")
    rank = int(told.get("rank") or match[1])
    if rank != int(match[1]):
        raise ValueError(f"window.json is of rank {rank}")
    steps = tuple(Step(int(n), int(start), int(end)) for n, start, end in told.get("steps", ()))
    return _Window(
        folder,
        attempt,
        rank,
        f"{match[2]}-{match[3]}",
        int(told["first_step"]),
        int(told.get("last_step") or told["first_step"]),
        int(told["start_ns"]),
        int(told["end_ns"]),
        int(told.get("shift_ns") or 0),
        tuple(sorted(steps, key=lambda step: step.start_ns)),
    )


def _adopt(run_dir: Path, window: _Window) -> bool:
    """Write the part of a window, unless the run has it."""
    final = part_folder(run_dir, "spans", window.attempt, window.rank) / window.part
    with _alone(window.folder):
        for table in ("spans", "facts"):  # left by one that was killed, maybe just after publishing
            for path in part_folder(run_dir, table, window.attempt, window.rank).glob(
                f".{window.part}.*.tmp"
            ):
                path.unlink(missing_ok=True)
        if final.exists() or _compacted(run_dir, window.part):
            return False
        world = _world_size(run_dir, window)
        places = window.first_step % (1 << 22)
        owner = Owner(
            run_id_of(run_dir),
            window.attempt,
            window.rank,
            world,
            _FIRST_ID + (places << _APART),
        )
        rows, facts = _rows(window, owner)
        held = [Held(window.attempt, window.rank, "", world_size=world or None)]
        with contextlib.suppress(FileExistsError):
            if facts:
                beside = part_folder(run_dir, "facts", window.attempt, window.rank) / window.part
                write_file(beside, "facts", [table_of(facts)], held)
        write_file(final, "spans", [rows], held, sync=True)
        return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a window. Raises ``BlockingIOError`` while another process does."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # no locks there: what is written twice is told apart by its name
        yield
    finally:
        os.close(file)


def _compacted(run_dir: Path, part: str) -> bool:
    """Whether a compacted file has taken the part over."""
    for path in (run_dir / "spans").glob("compact-*.parquet"):
        with contextlib.suppress(OSError, TracekitError):
            if part in read_footer(path, "spans").replaces:
                return True
    return False


def _world_size(run_dir: Path, window: _Window) -> int:
    """What the rank said of the size of its world; 0 where it is not known."""
    folder = run_dir / f"attempt-{window.attempt:03d}" / "ranks"
    try:
        said = json.loads((folder / f"{window.folder.parent.name}.json").read_bytes())
        return int(said.get("world_size") or 0)
    except (OSError, ValueError, TypeError, AttributeError):
        return 0


def _rows(window: _Window, owner: Owner) -> tuple[pa.Table, list[FactRow]]:
    """The spans of a window in the steps that it lists, and the groups they name."""
    paths = sorted(window.folder.glob("plugins/profile/*/*.xplane.pb"))
    if not paths:
        raise ValueError("there is no profile in it")
    tables: list[pa.Table] = []
    facts: list[FactRow] = []
    wrong = ""
    for path in paths:
        with open_space(path) as space:
            profile = read_profile(space, window.shift_ns)
            wrong = space.wrong[0] if space.wrong else wrong
        if profile.empty:
            continue
        _check_times(profile, window)
        rows = span_rows(
            profile, window.steps or steps_of(profile), owner, with_steps=not window.steps
        )
        tables.append(rows.filter(pc.is_valid(rows["step"])))
        facts += _groups(profile, owner)
    if not tables:
        raise ValueError(wrong or "no host or device plane with events in it")
    return pa.concat_tables(tables).unify_dictionaries(), facts


def _check_times(profile: Profile, window: _Window) -> None:
    early = profile.last_ns < window.start_ns - _OFF_NS
    if early or profile.first_ns > window.end_ns + _OFF_NS:
        raise ValueError("the profile's times do not fit the window's")


def _groups(profile: Profile, owner: Owner) -> list[FactRow]:
    """Which ranks the groups have; one rank's word is enough."""
    if owner.rank:
        return []
    facts = []
    for key in profile.group_sizes:
        name, size = group_name(profile, key, owner, replicas_of(profile))
        if size and size == owner.world_size:
            value: Mapping[str, Any] = {
                "id": name,
                "ranks": list(range(size)),
                "name": f"group {key}",
            }
            facts.append(FactRow(owner.run_id, owner.attempt, owner.rank, "group", value))
    return facts


def _thin_out(folder: Path) -> None:
    """Remove the profiles of windows whose spans are in the run, but for the newest ones."""
    marks = sorted(folder.glob(f"window-*/{_MARK}"), key=lambda mark: mark.stat().st_mtime_ns)
    for mark in marks[:-_KEPT]:
        for path in mark.parent.glob("plugins/profile/*/*.xplane.pb"):
            path.unlink(missing_ok=True)
