"""What the files of a run directory say about its attempts and ranks, before any table is read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import InputError
from tracekit.journal.process import boot_id

__all__ = ["RankFile", "attempts", "latest_attempt", "rank_files"]

_ATTEMPT = re.compile(r"attempt-(\d+)")
_RANK = re.compile(r"rank-(\d+)\.[^.]+\.json")


@dataclass(frozen=True, slots=True)
class RankFile:
    """One process that was a rank: where it ran and where its journal lies."""

    attempt: int
    rank: int
    stem: str
    host: str
    here: bool
    """Whether it ran on this host, since its last boot."""
    journal: Path


def attempts(run: Path) -> list[int]:
    """The attempts of a run; none where its records came from elsewhere.

    Raises ``InputError`` for what is not a run directory.
    """
    try:
        entries = {path.name: _ATTEMPT.fullmatch(path.name) for path in run.iterdir()}
    except FileNotFoundError:
        raise InputError(run, "does not exist") from None
    except NotADirectoryError:
        raise InputError(run, "a file, not a run directory") from None
    except OSError as error:
        raise InputError(run, error.strerror or str(error)) from error
    numbers = sorted(int(match[1]) for match in entries.values() if match)
    if not entries:
        raise InputError(run, "the directory is empty")
    if not numbers and not entries.keys() & {"run.json", "spans"}:
        raise InputError(run, "not a run directory: no run.json, no attempt-000, no spans in it")
    return numbers


def latest_attempt(run: Path) -> int:
    """The last attempt of a run."""
    return max(attempts(run), default=0)


def rank_files(run: Path, attempt: int) -> list[RankFile]:
    """The ranks an attempt had, in order; files that cannot be read are left out."""
    folder = run / f"attempt-{attempt:03d}"
    found = []
    for path in sorted((folder / "ranks").glob("rank-*.json")):
        match = _RANK.fullmatch(path.name)
        try:
            said = json.loads(path.read_bytes())
            if match is None or "pid" not in said:
                continue  # how a rank ended, its stacks
            found.append(
                RankFile(
                    attempt=attempt,
                    rank=int(match[1]),
                    stem=path.name.removesuffix(".json"),
                    host=str(said.get("host", "unknown")),
                    here=said.get("boot_id") == boot_id(),
                    journal=Path(said.get("journal") or folder / "journal"),
                )
            )
        except (OSError, ValueError, TypeError):
            continue
    return found
