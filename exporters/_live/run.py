"""A running attempt as it is written: the whole steps of a host's ranks, and who these are."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import orjson
import pyarrow as pa

from tracekit.dataset.conversion import run_json
from tracekit.exporters._live.new_parts import NewParts, Outside
from tracekit.exporters._otel.resource import Resources
from tracekit.exporters._otel.spans import RunIds
from tracekit.exporters._values import values

__all__ = ["LiveRun", "Source"]

_HELD_FOR_S = 30.0
"""How long a step waits for the ranks that have not ended it."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported: an attempt of a run, the ranks of one host.

    ``host`` is the host's eight digits in file names, ``ranks`` how many ranks it has.
    """

    run_dir: Path
    attempt: int
    host: str
    ranks: int


class LiveRun:
    """What of a run one reader has taken; ``given`` are the user's attributes of the resource."""

    def __init__(self, source: Source, given: Mapping[str, str]) -> None:
        self._source, self._given = source, given
        self._parts = NewParts(source.run_dir, source.attempt, source.host, source.ranks)
        self._newest: deque[tuple[float, int]] = deque()
        self._aged = -1
        self._is_all = False
        self.ranks: set[int] = set()
        """Those that said who they are."""

    @cached_property
    def _name(self) -> tuple[str, str]:
        """The id and the label of the run; not asked for before there is something to name."""
        folder = self._source.run_dir
        said = run_json(folder)
        return str(said.get("uid") or folder.resolve().name), str(said.get("label") or folder.name)

    @cached_property
    def ids(self) -> RunIds:
        """The ids of the attempt's spans."""
        return RunIds(self._name[0], self._source.attempt)

    @cached_property
    def resources(self) -> Resources:
        """Who the ranks are, as far as it is known by now."""
        return Resources(*self._name, self._source.attempt, self._given)

    def look(self, is_all: bool = False) -> list[Outside]:
        """Find what is new; returns what of it belongs to no step.

        ``is_all`` says that all was written before this look: then no step waits any longer.
        """
        self._is_all = is_all
        found = self._parts.look()
        folder = self._source.run_dir / f"attempt-{self._source.attempt:03d}" / "ranks"
        for path in folder.glob(f"rank-*.{self._source.host}-*.json"):
            if path.name.count(".") == 2:
                with contextlib.suppress(OSError, ValueError):
                    rank = int(path.name[5:10])
                    if rank not in self.ranks:
                        text = path.read_text()
                        orjson.loads(text)  # half of a file is looked at again
                        self.resources.learn(rank, "rank", text)
                        self.ranks.add(rank)
        for new in found:
            facts = (values(new.facts[column]) for column in ("rank", "name", "value"))
            self.resources.learn_all(zip(*facts, strict=True))
        return found

    def steps(self) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """Take the steps of which all is there that will come."""
        return self._parts.steps(None if self._is_all else self._due())

    @property
    def unread(self) -> list[str]:
        """What could not be read, with the reason."""
        return self._parts.unread

    def late(self) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """Take what came after its step was taken: of a rank that others did not wait for."""
        return self._parts.late()

    def tallies(self) -> Iterator[tuple[int, int, int, set[str]]]:
        """Take all that there are without looking into them: see ``NewParts.tallies``."""
        return self._parts.tallies()

    def _due(self) -> int:
        now, newest = time.monotonic(), self._parts.newest
        if newest > (self._newest[-1][1] if self._newest else self._aged):
            self._newest.append((now, newest))
        # A rank that hangs, or never came, does not keep the others' steps for ever.
        while self._newest and now - self._newest[0][0] > _HELD_FOR_S:
            self._aged = self._newest.popleft()[1]
        return max(self._parts.complete, self._aged)
