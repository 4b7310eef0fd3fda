"""From the text of RAS to answers: status reports of all releases, and events of its monitor.

A report is a sequence of lines of known shapes, which stand in ``lines.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from functools import lru_cache

from tracekit.adapters.nccl_ras._look import Comm, Look, Process, Reported, State
from tracekit.adapters.nccl_ras._table import table

__all__ = ["known_share", "read_text", "time_of"]

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]")
_DATE = re.compile(
    r"^\s{0,200}(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)?\s{0,200}$"
)
_CTIME = re.compile(
    r"^\s{0,200}[A-Z][a-z]{2} {1,8}([A-Z][a-z]{2}) {1,8}(\d{1,2}) (\d\d:\d\d:\d\d)"
    r"(?: [AP]M)? (?:\w{1,5} )?(\d{4})\s{0,200}$"
)
_LONGEST = 4096


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["name"], re.compile(row["match"])) for row in table()["lines"])


@lru_cache(maxsize=1)
def _managed() -> re.Pattern[str]:
    return re.compile(table()["managed"])


def _shape(line: str) -> tuple[str, re.Match[str]] | None:
    for name, pattern in _patterns():
        found = pattern.search(line)
        if found is not None:
            return name, found
    return None


def known_share(text: str) -> float:
    """The part of lines that belong to a report, of those that have something on them."""
    lines = [line for line in text.splitlines() if line.strip(" =\t\r")]
    known = sum(_shape(line) is not None or _is_title(line) for line in lines[:-1] or lines)
    return known / max(1, len(lines[:-1] or lines))


def _is_title(line: str) -> bool:
    titles = ("Group ", "# ", "Nodes ", "(total)", "CUDA runtime", "per node", "RAS Monitor", "OK")
    return line.strip().startswith(titles) or _time_alone(line) is not None


def time_of(text: str) -> int | None:
    """A date and a time as Unix time, as if it were UTC."""
    try:
        moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1_000_000_000


def _time_alone(line: str) -> int | None:
    """The time on a line that has nothing else, as ``date`` prints it between reports."""
    found = _DATE.match(line)
    if found is not None:
        return time_of(f"{found[1]} {found[2]}")
    found = _CTIME.match(line)
    if found is None:
        return None
    try:
        moment = datetime.strptime(
            f"{found[4]} {found[1]} {found[2]} {found[3]}", "%Y %b %d %H:%M:%S"
        )
    except ValueError:
        return None
    return int(moment.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000_000


def read_text(file: str, lines: Iterable[str]) -> Iterator[Look]:
    """The answers in a file, in their order; the last one may not be whole."""
    reader = _Reader(file)
    for number, line in enumerate(lines, 1):
        yield from reader.take(number, _ANSI.sub("", line[:_LONGEST]).rstrip("\r\n"))
    yield from reader.end()


class _Reader:
    """Reads reports line by line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.look: Look | None = None
        self.time_ns: int | None = None
        self.sizes: dict[int, tuple[int, str]] = {}
        self.block = ""
        self.comm: Comm | None = None
        self.listed: list[int] | None = None
        """Where members that follow belong."""
        self.op = ""
        self.phase = ""

    def take(self, number: int, line: str) -> Iterator[Look]:
        found = _shape(line)
        if found is None:
            told = _time_alone(line)
            self.time_ns = told if told is not None else self.time_ns
            return
        name, match = found
        if name == "event":
            yield self._event(number, match)
        elif name in ("version", "summary", "communicators") and self._begins(name):
            yield from self.end()
            self._new(number)
        if self.look is None:
            if name not in ("group", "errors", "about_comm", "about_job"):
                return
            self._new(number)  # a report whose beginning is cut off
        handle = getattr(self, f"_on_{name}", None)
        if handle is not None:
            handle(match)

    def _begins(self, name: str) -> bool:
        """Whether such a line is the first of another report."""
        if self.look is None:
            return True
        past = (
            ("errors", "warnings") if name == "communicators" else ("comms", "errors", "warnings")
        )
        return self.block in past

    def _new(self, number: int) -> None:
        self.look = Look(self.file, number, "text", self.time_ns)
        self.time_ns = None
        self.sizes, self.block, self.comm, self.listed = {}, "", None, None

    def end(self) -> Iterator[Look]:
        if self.look is not None and self.block:
            self.look.whole = self.block == "warnings"
            yield self.look
        self.look = None

    # Titles and tables

    def _on_version(self, found: re.Match[str]) -> None:
        self._of().version = found["version"]

    def _on_summary(self, found: re.Match[str]) -> None:
        self.block = "summary"

    def _on_table(self, found: re.Match[str]) -> None:
        numbers = [int(word) for word in found["numbers"].split()]
        look = self._of()
        if self.block == "summary" and len(numbers) in (3, 5):
            look.nodes, look.processes, look.gpus = numbers[0], numbers[-2], numbers[-1]

    def _on_communicators(self, found: re.Match[str]) -> None:
        self.block = "comms"

    def _on_none(self, found: re.Match[str]) -> None:
        self.block = "comms"

    def _on_group(self, found: re.Match[str]) -> None:
        self.sizes[int(found["group"])] = int(found["size"]), found["status"]
        row = {name: int(found[name]) for name in ("comms", "nodes", "size", "ranks")}
        self._of().groups.append({**row, "status": found["status"], "errors": found["errors"]})
        if "RUNNING" in found["status"] or "INIT" in found["status"]:
            self._of().running += int(found["comms"])
        self.block = self.block or "comms"

    def _on_errors(self, found: re.Match[str]) -> None:
        self.block, self.comm, self.listed = "errors", None, None

    def _on_warnings(self, found: re.Match[str]) -> None:
        self.block, self.comm, self.listed = "warnings", None, None

    def _on_about_job(self, found: re.Match[str]) -> None:
        self.comm, self.listed = None, None
        self.op = found["kind"]

    def _on_about_comm(self, found: re.Match[str]) -> None:
        self.block = self.block or "errors"
        self.comm = self._of().comm(found["hash"].lstrip("0") or "0")
        self.comm.name = f"#{found['group']}-{found['number']}"
        self.comm.size, status = self.sizes.get(int(found["group"]), (None, ""))
        if status and not self.comm.status:
            self.comm.status = [State(status, self.comm.size or 0)]
        self.listed, self.op, self.phase = None, found["kind"], ""

    # Processes and ranks that did not answer

    def _on_missing(self, found: re.Match[str]) -> None:
        if found["what"] == "rank" and self.comm is not None:
            self.comm.missing = int(found["count"])
            self.listed = self.comm.missing_ranks
        elif found["what"] != "rank":
            self._of().silent_count = int(found["count"])
            self.op = "INCOMPLETE"

    def _on_missing_ranks(self, found: re.Match[str]) -> None:
        if self.comm is not None:
            self.comm.missing_ranks += [int(word) for word in found["ranks"].split(",")]

    def _on_dead(self, found: re.Match[str]) -> None:
        self._of().dead_count = int(found["count"])
        self.op = "DEAD"

    def _on_timeouts(self, found: re.Match[str]) -> None:
        self._of().timeouts = int(found["count"])

    def _on_process(self, found: re.Match[str]) -> None:
        process = _process(found)
        if self.op == "DEAD":
            self._of().dead.append(process)
        elif self.op == "INCOMPLETE":
            self._of().silent.append(process)

    def _event(self, number: int, found: re.Match[str]) -> Look:
        look = Look(self.file, number, "event", time_of(found["time"]), whole=True)
        process = _EVENT_PROCESS.search(found["rest"])
        listed = [_process(process)] if process is not None else []
        if found["event"] in table()["dead_events"]:
            look.dead, look.dead_count = listed, 1
        elif found["event"] in table()["silent_events"]:
            look.silent, look.silent_count = listed, 1
        return look

    # What ranks of a communicator report, and in what they differ

    def _on_phase(self, found: re.Match[str]) -> None:
        self.phase = found["phase"].lower()

    def _on_errors_of(self, found: re.Match[str]) -> None:
        if self.comm is not None:
            one = Reported(found["error"], self.phase, int(found["count"]))
            self.comm.reported.append(one)
            self.listed = one.ranks

    def _on_error_of(self, found: re.Match[str]) -> None:
        if self.comm is not None:
            rank = self._member(found)
            self.comm.reported.append(Reported(found["error"], self.phase, 1, [rank]))

    def _on_differ_status(self, found: re.Match[str]) -> None:
        if self.comm is not None:
            self.comm.status = []

    def _on_differ_counts(self, found: re.Match[str]) -> None:
        self.op = found["op"]
        if self.comm is not None:
            self.comm.counts[self.op] = []

    def _on_counts_of(self, found: re.Match[str]) -> None:
        self._counted(int(found["value"]), int(found["count"]), None)

    def _on_nothing_of(self, found: re.Match[str]) -> None:
        self._counted(0, int(found["count"]), None)

    def _on_count_of(self, found: re.Match[str]) -> None:
        self._counted(int(found["value"]), 1, self._member(found))

    def _on_none_of(self, found: re.Match[str]) -> None:
        self._counted(0, 1, self._member(found))

    def _counted(self, value: int, count: int, rank: int | None) -> None:
        if self.comm is None:
            return
        state = State(value, count, [] if rank is None else [rank])
        self.comm.counts.setdefault(self.op, []).append(state)
        self.listed = state.ranks if rank is None else None

    def _on_statuses_of(self, found: re.Match[str]) -> None:
        self._stands(found["status"], int(found["count"]), None)

    def _on_status_of(self, found: re.Match[str]) -> None:
        self._stands(found["status"], 1, self._member(found))

    def _stands(self, status: str, count: int, rank: int | None) -> None:
        if self.comm is None:
            return
        status = "NOCOMM" if status == "UNKNOWN" else status  # so it was called before 2.26
        state = State(status, count, [] if rank is None else [rank])
        self.comm.status.append(state)
        self.listed = state.ranks if rank is None else None

    def _on_member(self, found: re.Match[str]) -> None:
        rank = self._member(found)
        if self.listed is not None:
            self.listed.append(rank)

    def _member(self, found: re.Match[str]) -> int:
        rank = int(found["rank"])
        managed = _managed().search(found.string, found.end() - 4)
        if managed is not None and self.comm is not None:
            gpus = (int(managed["gpu"]),)
            process = Process(managed["host"], int(managed["pid"]), gpus, rank)
            self.comm.members[rank] = process
        return rank

    def _of(self) -> Look:
        assert self.look is not None
        return self.look


_EVENT_PROCESS = re.compile(
    r"Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,255}) managing GPUs? (?P<gpus>[\d,]{1,300})"
)


def _process(found: re.Match[str]) -> Process:
    gpus = tuple(int(word) for word in found["gpus"].split(",") if word)
    return Process(found["host"], int(found["pid"]), gpus)
