"""The small files of a run: who the ranks were, how they ended, and what they were doing.

attempt-000/ranks/<stem>.json          identity
attempt-000/ranks/<stem>.end.json      end state
attempt-000/ranks/<stem>.stacks.json   stacks taken while the rank was stuck
attempt-000/ranks/<stem>.stacks.txt    what its faulthandler wrote, also when it died of a signal
attempt-000/launcher*.json             the launcher's word: [{rank, pid, exitcode | signal}]
attempt-000/otlp-<host>.json           what became of the live export of a host
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.dataset.stacks import dying_words
from tracekit.errors import FormatError, InputError

__all__ = ["Sidecars", "attempt_folders", "launcher_state", "merged_state", "read_sidecars"]

_ATTEMPT = re.compile(r"attempt-(\d+)")
_MOST_STACKS = 1 << 20
_STEM = re.compile(r"rank-(\d+)\.(.+?)-(\d+)")

Stem = tuple[int, str]
"""An attempt and the stem of one of its journals."""


@dataclass(slots=True)
class Sidecars:
    """What the JSON files say, by attempt and stem."""

    identities: dict[Stem, dict[str, Any]] = field(default_factory=dict)
    ends: dict[Stem, dict[str, Any]] = field(default_factory=dict)
    stacks: dict[Stem, list[dict[str, Any]]] = field(default_factory=dict)
    deaths: dict[Stem, dict[str, Any]] = field(default_factory=dict)
    launcher: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    exports: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    found: int = 0
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def attempt_folders(run_dir: Path) -> dict[int, Path]:
    """The folders of the attempts by number."""
    named = ((_ATTEMPT.fullmatch(path.name), path) for path in run_dir.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in named if match and path.is_dir()))


def read_sidecars(run_dir: Path) -> Sidecars:
    """Read them all; what cannot be read is skipped and named."""
    read = Sidecars()
    for attempt, folder in attempt_folders(run_dir).items():
        for path in sorted((folder / "ranks").glob("*.json")):
            stem, _, what = path.name.removesuffix(".json").partition(".")
            process, _, what = what.partition(".")
            key = attempt, f"{stem}.{process}"
            for value in _values(path, read, list if what == "stacks" else dict):
                if what == "stacks":
                    read.stacks[key] = [item for item in value if isinstance(item, dict)]
                elif what == "end":
                    read.ends[key] = value
                elif not what:
                    read.identities[key] = value
        for path in sorted((folder / "ranks").glob("*.stacks.txt")):
            said = _dying_words(path)
            if said:
                read.deaths[attempt, path.name.removesuffix(".stacks.txt")] = said
        for path in sorted(folder.glob("launcher*.json")):
            for value in _values(path, read, list):
                read.launcher += [(attempt, item) for item in value if isinstance(item, dict)]
        for path in sorted(folder.glob("otlp-*.json")):
            read.exports += [(attempt, value) for value in _values(path, read, dict)]
    return read


def _dying_words(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_STACKS))
            return dying_words(file.read(_MOST_STACKS).decode("utf-8", "replace"))
    except OSError:
        return {}


def _values(path: Path, read: Sidecars, kind: type) -> Iterator[Any]:
    """The value of a file, if it can be read and has the right form."""
    if path.name.startswith("."):
        return
    read.found += 1
    try:
        yield _load(path, kind)
    except FileNotFoundError:
        read.found -= 1
    except InputError as error:
        read.skipped.append((path, error.reason))


def _load(path: Path, kind: type) -> Any:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    except ValueError as error:
        empty = not path.stat().st_size
        raise FormatError(path, "the file is empty" if empty else "cut or not JSON") from error
    if not isinstance(value, kind):
        raise FormatError(path, "not a JSON list" if kind is list else "not a JSON object")
    return value


def rank_of(stem: str) -> int | None:
    """The rank in a stem."""
    match = re.match(r"rank-(\d+)\.", stem)
    return int(match[1]) if match else None


def pid_of(stem: str) -> int | None:
    """The pid in a stem."""
    match = _STEM.fullmatch(stem)
    return int(match[3]) if match else None


def launcher_state(word: Mapping[str, Any]) -> dict[str, Any]:
    """An end state from a launcher's word; a negative exit code is a signal."""
    state: dict[str, Any] = {**word, "source": "launcher"}
    code, signal = word.get("exitcode"), word.get("signal")
    if signal is None and isinstance(code, int) and code < 0:
        signal = -code
    if signal:
        return {**state, "state": "signal", "signal": int(signal)}
    if code is None:
        return state
    return {**state, "state": "clean" if code == 0 else "exit"}


def merged_state(seen: Mapping[str, Any], word: Mapping[str, Any] | None) -> dict[str, Any]:
    """One end state from what tracekit saw and what the launcher says.

    The launcher knows signals and exit codes for certain; an exception is more than its code.
    """
    if word is None:
        return dict(seen)
    told = launcher_state(word)
    if "state" not in told or (seen.get("state") == "exception" and told["state"] == "exit"):
        return {**told, **seen}
    if told["state"] == "clean" and seen.get("state") == "running":
        return {**told, **seen}
    return {**seen, **told}
