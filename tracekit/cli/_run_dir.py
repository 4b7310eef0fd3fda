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
    """The attempts of a run. Raises ``InputError`` for what is not a run directory."""
    if not run.is_dir():
        raise InputError(run, "no such directory" if not run.exists() else "not a directory")
    found = [_ATTEMPT.fullmatch(path.name) for path in run.iterdir()]
    numbers = sorted(int(match[1]) for match in found if match)
    if not numbers:
        raise InputError(run, "not a run directory: it has no attempt-000")
    return numbers


def latest_attempt(run: Path) -> int:
    """The last attempt of a run."""
    return attempts(run)[-1]


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
