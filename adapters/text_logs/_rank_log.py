"""What one rank's lines say: its troubles in order, its waits, its first and last words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracekit.adapters.text_logs._traceback import Raised, TracebackReader

__all__ = ["CUT", "Line", "RankLog", "Trouble", "Wait"]

CUT = 400
_KEPT = 60
_SURVIVED = 10
"""So many ordinary lines after an error mean that the rank went on."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: where it stands, when it was written, what it says."""

    source: str
    order: int
    time_ns: int | None
    text: str


@dataclass(slots=True)
class Trouble:
    """A line, or a traceback, that tells of something that went wrong."""

    line: Line
    name: str
    """The name of the event that it becomes."""
    cause: str
    role: str
    pattern: str
    frame: str | None = None
    raised: Raised | None = None
    said: Mapping[str, str | None] = field(default_factory=dict)
    after: int = 0
    """How many ordinary lines its rank wrote after it in the same file."""
    mark: int | None = None
    """How many it had written before, while its file is read."""

    @property
    def survived(self) -> bool:
        """Whether its rank went on as if nothing had happened."""
        return self.after >= _SURVIVED


@dataclass(slots=True)
class Wait:
    """A collective that a rank was in when a watchdog looked."""

    group: str
    op: str
    seq: int
    ran_ms: int
    timeout_ms: int
    numel: int | None
    line: Line
    of_one_size: bool = False
    """Whether all ranks must have parts of one size in it."""
    state: str = "enqueued"


@dataclass(slots=True)
class RankLog:
    """The log of one rank, or of what stands in for one."""

    lines: int = 0
    first: Line | None = None
    last: Line | None = None
    troubles: list[Trouble] = field(default_factory=list)
    more: int = 0
    """Troubles beyond those that are kept."""
    waits: dict[str, Wait] = field(default_factory=dict)
    """The first wait of each group."""
    works: dict[str, tuple[int, int, Line]] = field(default_factory=dict)
    """Last enqueued and last completed work of each group."""
    traceback: TracebackReader = field(default_factory=TracebackReader)
    ordinary: int = 0
    glanced: tuple[str, int, int, int | None, bytes] | None = None
    """File, number, order, time and text of its last line, where that is not made a line yet."""
    nameless: bool = False
    """Whether it waited in a group that its lines do not name."""

    def saw(self, line: Line, ordinary: bool) -> None:
        """Count a line."""
        if self.glanced is not None:
            self.settle()
        self.lines += 1
        if self.first is None:
            self.first = line
        if ordinary:
            self.ordinary += 1
            if line.text.strip() and not self._older(line):
                self.last = line
        elif self.last is None:
            self.last = line

    def glance(self, name: str, number: int, order: int, time_ns: int | None, raw: bytes) -> None:
        """Keep an ordinary line as the last one, in parts, unless it is older than that."""
        if time_ns is not None:
            last = self.glanced[3] if self.glanced else self.last.time_ns if self.last else None
            if last is not None and time_ns < last:
                return
        self.glanced = name, number, order, time_ns, raw

    def settle(self) -> None:
        """Make a line of the last one that was only glanced at."""
        if self.glanced is not None:
            (name, number, order, time_ns, raw), self.glanced = self.glanced, None
            self.last = Line(f"{name}:{number}", order, time_ns, raw[:CUT].decode())

    def _older(self, line: Line) -> bool:
        """Whether a line was written before the last one, in another file of the rank."""
        last = self.last.time_ns if self.last is not None else None
        return last is not None and line.time_ns is not None and line.time_ns < last

    def trouble(self, trouble: Trouble) -> None:
        """Keep a trouble; of very many only the first ones."""
        if len(self.troubles) >= _KEPT:
            self.more += 1
            return
        trouble.mark = self.ordinary  # what comes after it is reckoned when its file is over
        self.troubles.append(trouble)

    def close(self) -> None:
        """Reckon what came after each trouble; the rank's file is over."""
        self.settle()
        for trouble in self.troubles:
            if trouble.mark is not None:
                trouble.after, trouble.mark = self.ordinary - trouble.mark, None
        self.ordinary = 0

    def join(self, other: RankLog) -> None:
        """Take in another file of the same rank."""
        self.lines += other.lines
        self.nameless |= other.nameless
        firsts = [line for line in (self.first, other.first) if line is not None]
        lasts = [line for line in (self.last, other.last) if line is not None]
        self.first = min(firsts, key=_when, default=None)
        self.last = max(lasts, key=_when, default=None)
        joined = [*self.troubles, *other.troubles]
        if all(trouble.line.time_ns is not None for trouble in joined):
            joined.sort(key=lambda trouble: _when(trouble.line))
        self.troubles = joined[: 2 * _KEPT]
        self.more += other.more + len(joined) - len(self.troubles)
        for group, wait in other.waits.items():
            self.waits.setdefault(group, wait)
        for group, work in other.works.items():
            if group not in self.works or self.works[group][0] < work[0]:
                self.works[group] = work


def _when(line: Line) -> tuple[int, int]:
    return line.time_ns or 0, line.order
