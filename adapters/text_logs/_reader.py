"""Reads any number of text logs of one job, or of its attempts, into ``Job`` objects."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from tracekit.adapters.text_logs._dates import Dates
from tracekit.adapters.text_logs._decode import byte_lines, lines_of, texts_of, wide_encoding
from tracekit.adapters.text_logs._elastic import Summary, is_error_file, read_error_file
from tracekit.adapters.text_logs._job import DEFAULT_GROUP, Ended, Job
from tracekit.adapters.text_logs._last_error import Quoted, announces, quoted
from tracekit.adapters.text_logs._patterns import Hit, Table, table
from tracekit.adapters.text_logs._rank_log import CUT, Line, Trouble
from tracekit.adapters.text_logs._tags import Places, Stamp, Tagged, from_path, glued, tagged
from tracekit.adapters.text_logs._templates import LIKE, Template, Templates, clock_of
from tracekit.adapters.text_logs._traceback import Raised

__all__ = ["LogReader", "is_nccl"]

_EFFECTS = re.compile(r"ChildFailedError|SignalException|KeyboardInterrupt$|SystemExit$|BrokenPipe")
_SUMMARY = ("Failures:", "Root Cause (first observed failure):")
_LATE_NS = 60_000_000_000
_MOST_DAYS = 4096
_NEW = Template(False, Places(None, None, None, (), 0), 0, None, True)
"""Stands for a template that is not known yet."""
_TRACEBACK = "Traceback (most recent call last)"
_ORDINARY = ("benign", "note", "start", "options", "world", "logged")
"""Roles of messages that are no failure."""
_OUT_OF_MEMORY = re.compile(r"(?:^|\.)MemoryError$|OutOfMemoryError$")


_NCCL = (" NCCL INFO ", " NCCL WARN ", " NCCL TRACE ", " NCCL CALL ")


def is_nccl(line: str) -> bool:
    """Whether a line is NCCL's own, which others read: processes in it are not ranks."""
    return " NCCL " in line and any(sign in line for sign in _NCCL)


@dataclass(slots=True)
class _File:
    """Where the reader is in a file."""

    number: int
    name: str
    rank: int | None
    attempt: int
    dates: Dates
    summary: Summary = field(default_factory=Summary)
    dead: set[int] = field(default_factory=set)
    died_ns: int | None = None
    """When the last of them had ended, if that was said."""
    """Ranks that a summary in this file said had ended."""
    offset: int | None = None
    """Global rank minus local rank, where the file shows both."""
    locals: set[tuple[int, int]] = field(default_factory=set)
    """Attempt and local rank of lines that have no global one."""
    failing: Hashable = None
    """Who wrote the last line that tells of an error."""
    quotes: bool = False
    """Whether the next line is what NCCL said of it."""
    days: dict[bytes, int] = field(default_factory=dict)
    """Unix time, in nanoseconds, of the midnight of each date as it is written."""


class LogReader:
    """Takes files one by one; ``finish()`` gives the jobs.

    Ordinary lines are only glanced at, unless ``glance`` is false: what is found is the same.
    """

    def __init__(self, known: Table | None = None, *, glance: bool = True) -> None:
        self.table = known or table()
        self._templates = Templates(self.table, is_nccl)
        self._glances = glance
        self.jobs: dict[int, Job] = {}
        self.lines = 0
        self._files = 0

    def read(self, path: Path, name: str, written_s: float) -> None:
        """Read a file; ``name`` is what it is called in sources. Raises ``OSError``."""
        rank, attempt = from_path(path)
        self._files += 1
        file = _File(self._files, name, rank, attempt or 0, Dates(written_s))
        with path.open("rb") as opened:
            head = opened.read(4096)
        if is_error_file(head):
            self._error_file(path, file)
            return
        if wide_encoding(head) is not None:
            for number, text in lines_of(path):
                self._text(file, number, text)
        else:
            with path.open("rb") as opened:
                self._lines(file, opened)
        self._close(file)

    def finish(self) -> list[Job]:
        """The jobs in order, with local ranks and pids resolved as far as they can be."""
        jobs = [job for _, job in sorted(self.jobs.items())]
        for job in jobs:
            for log in job.ranks.values():
                log.close()
            if set(job.ranks) == {None}:
                job.rename(None, 0)  # one process that never said who it is
            named = [rank for rank in job.ranks if isinstance(rank, int)]
            named += [end.rank for end in job.ended if end.rank is not None]
            job.world = max([job.world, *(rank + 1 for rank in named)])
            job.settle()
        return [job for job in jobs if job.ranks or job.ended or job.events]

    # Lines

    def _lines(self, file: _File, opened: BinaryIO) -> None:
        known, meet, glance = self._templates.known, self._templates.meet, self._glance
        for number, raw in byte_lines(opened):
            if self._glances:
                key = raw.translate(LIKE)
                template = known.get(key, _NEW)
                if template is _NEW:
                    meet(key, raw)
                elif template is not None and glance(file, number, raw, template):
                    continue
            for text in texts_of(raw, number):
                self._text(file, number, text)

    def _text(self, file: _File, number: int, text: str) -> None:
        self.lines += 1
        if is_nccl(text):
            return
        for piece in glued(text):
            self._line(file, number, piece)

    def _glance(self, file: _File, number: int, raw: bytes, like: Template) -> bool:
        """Take an ordinary line by what is known of its kind; False where that is not enough."""
        if like.is_skipped:
            self.lines += 1
            return True
        job = self.jobs.get(file.attempt)
        if job is None or file.dead or file.quotes or file.summary.inside:
            return False
        places = like.places
        if places.rank is not None:
            who: Hashable = int(raw[places.rank[0] : places.rank[1]])
        elif places.local is not None:
            local = int(raw[places.local[0] : places.local[1]])
            if file.offset is None:
                file.locals.add((file.attempt, local))
                who = "local", file.number, local
            else:
                who = local + file.offset
        else:
            who = file.rank
        log = job.ranks.get(who)
        if log is None or log.first is None or log.traceback.inside:
            return False
        time_ns = None
        if places.clock:
            time_ns = self._when(file, raw, like, who)
            if time_ns is None:
                return False
        self.lines += 1
        log.lines += 1
        log.ordinary += 1
        if like.blank:
            return True
        log.traceback.chained = False
        body = raw[places.body :]
        log.glance(file.name, number, self.lines, time_ns, body)
        drift, which = job.drift, None
        if like.step is not None:
            drift.steps += 1
            which = int(raw[like.step[0] : like.step[1]])
        if time_ns is not None:
            drift.note(who, like.kind, which, time_ns, body, (file.name, number))
        return True

    @staticmethod
    def _when(file: _File, raw: bytes, like: Template, who: Hashable) -> int | None:
        """The Unix time of a line; None where it cannot be told at a glance."""
        clock, dated = like.places.clock, like.places.dated
        second = clock_of(raw, clock)
        if second is None:
            return None
        if dated is None:
            return file.dates.unix_ns(Stamp(second), who)
        written = raw[dated[0] : clock[0][0]] + raw[clock[-1][1] : dated[1]]
        day = file.days.get(written)
        if day is None:
            stamp = tagged(raw.decode("ascii")).stamp
            time_ns = file.dates.unix_ns(stamp, who) if stamp is not None else None
            if time_ns is None or stamp is None:
                return None
            if len(file.days) >= _MOST_DAYS:
                file.days.clear()
            file.days[written] = time_ns - round(stamp.second * 1e9)
            return time_ns
        return day + round(second * 1e9)

    def _job(self, file: _File) -> Job:
        job = self.jobs.get(file.attempt)
        if job is None:
            job = self.jobs[file.attempt] = Job(file.attempt)
        return job

    def _is_news(self, file: _File, who: int, tag: Tagged) -> bool:
        """Whether a line is more than what a launcher passes on late of a rank that has ended."""
        time_ns = file.dates.unix_ns(tag.stamp, who) if tag.stamp is not None else None
        if time_ns is not None and file.died_ns is not None:
            return time_ns > file.died_ns + _LATE_NS
        hit = self.table.find(tag.body)
        return tag.body.startswith(_TRACEBACK) or (
            hit is not None and hit.row.role not in _ORDINARY
        )

    def _line(self, file: _File, number: int, text: str) -> None:
        job = self._job(file)
        if file.summary.inside or text.rstrip().endswith(_SUMMARY):
            line = Line(f"{file.name}:{number}", self.lines, None, text[:CUT])
            taken, ended = file.summary.take(text, line, file.dates)
            if ended is not None:
                self._ended(job, file, ended)
            if taken:
                return
        tag = tagged(text)
        who = self._who(job, file, tag)
        if isinstance(who, int) and who in file.dead and self._is_news(file, who, tag):
            file.attempt += 1  # a rank that had ended fails again: another job in the same file
            file.dead.clear()
            job = self._job(file)
        log = job.log(who)
        time_ns = file.dates.unix_ns(tag.stamp, who) if tag.stamp is not None else None
        line = Line(f"{file.name}:{number}", self.lines, time_ns, tag.body[:CUT])
        if file.quotes and tag.body.strip():
            file.quotes = False
            if self._quoted(job, file.failing if who in (None, file.rank) else who, line):
                log.saw(line, ordinary=False)
                return
        raised = log.traceback.take(number, tag.body)
        if isinstance(raised, Raised):
            file.failing = who
            self._raised(job, who, line, raised, tag)
            log.saw(line, ordinary=False)
            return
        if raised is True:
            log.saw(line, ordinary=False)
            return
        hit = self.table.find(tag.body)
        if hit is None:
            file.quotes = announces(tag.body)
            log.saw(line, ordinary=True)
            if tag.body.strip():
                log.traceback.chained = False
                job.drift.take(who, tag.body, time_ns, line.source)
            return
        if hit.row.role in ("start", "restart") and (file.dead or hit.row.role == "restart"):
            file.attempt += 1
            file.dead.clear()
            job = self._job(file)
        ordinary = hit.row.role in _ORDINARY
        if not ordinary:
            file.failing = who
        job.log(who).saw(line, ordinary)
        job.told(who, hit, line, tag.host)

    @staticmethod
    def _quoted(job: Job, who: Hashable, line: Line) -> bool:
        """Take in what NCCL said of the last error of a rank; False where nobody knows it."""
        found = quoted(line.text)
        if found is None or found[0].role not in ("primary", "secondary"):
            return False
        (meaning, peer), log = found, job.log(who)
        trouble = log.troubles[-1] if log.troubles else None
        if trouble is None or trouble.role not in ("cause", "effect"):
            trouble = Trouble(line, "error", "", "effect", "last_error")
            log.trouble(trouble)
        trouble.line = replace(trouble.line, text=line.text.strip())
        if meaning.role == "primary" and meaning.cause:
            trouble.cause, trouble.role = meaning.cause, "told"
            rank = who if isinstance(who, int) else None
            job.quoted.append(Quoted(rank, line, meaning.cause, peer if meaning.peer else None))
        else:
            trouble.role = "effect"
        return True

    def _who(self, job: Job, file: _File, tag: Tagged) -> Hashable:
        """Whose line it is: a rank, a local rank of this file, or None."""
        if tag.rank is not None:
            if tag.local is not None:
                file.offset = tag.rank - tag.local
            return tag.rank
        if tag.local is not None:
            if file.offset is not None:
                return tag.local + file.offset
            file.locals.add((file.attempt, tag.local))
            return "local", file.number, tag.local
        if (tag.severity and "[Rank " in tag.body[:40]) or "[PG " in tag.body[:4]:
            group, place = job.group(tag.body, None)
            if group == DEFAULT_GROUP and place is not None and file.rank is None:
                return place
        return file.rank

    def _raised(self, job: Job, who: Hashable, line: Line, raised: Raised, tag: Tagged) -> None:
        log = job.log(who)
        text = f"{raised.type}: {raised.message}" if raised.message else raised.type
        role, cause, pattern, said = self._verdict(raised, tag.body)
        last = log.troubles[-1] if log.troubles else None
        if last is not None and last.raised is not None:
            if (
                log.traceback.inner
            ):  # the exception of a loader's worker, told inside of its parent's
                last.raised, last.frame, last.role, last.cause = raised, raised.frame, role, cause
                last.line = replace(last.line, text=text[:CUT])
                return
            if log.traceback.chained:
                log.traceback.chained = False
                return  # the first of a chain is the cause of the others
        first = Line(f"{line.source.rpartition(':')[0]}:{raised.line}", line.order, line.time_ns,
                     text[:CUT])  # fmt: skip
        hit = self.table.find(tag.body) if pattern != "exception" else None
        if hit is not None and role in ("wait", "status", "mismatch", "missing"):
            job.told(who, Hit(hit.row, hit.said), first, tag.host)
            if log.troubles:
                log.troubles[-1].frame, log.troubles[-1].raised = raised.frame, raised
            return
        log.trouble(Trouble(first, "error", cause, role, pattern, raised.frame, raised, said))

    def _verdict(self, raised: Raised, text: str) -> tuple[str, str, str, Mapping[str, str | None]]:
        """Role, cause class, pattern and named parts of an exception."""
        if _OUT_OF_MEMORY.search(raised.type) and not raised.type.startswith("torch"):
            return "cause", "killed_oom", "exception", {}
        hit = self.table.find(text)
        if hit is not None and hit.row.role not in ("logged", "world", "note", "benign"):
            return hit.row.role, hit.row.cause, hit.row.name, hit.said
        return "effect" if _EFFECTS.search(raised.type) else "cause", "", "exception", {}

    # Ends

    def _ended(self, job: Job, file: _File, ended: Ended) -> None:
        job.failed = True
        job.ended.append(ended)
        self._told_error(job, ended)
        if ended.rank is not None:
            file.dead.add(ended.rank)
            file.died_ns = ended.time_ns or file.died_ns
            if ended.local is not None:
                file.offset = ended.rank - ended.local

    def _error_file(self, path: Path, file: _File) -> None:
        job = self._job(file)
        ended = read_error_file(path, file.name, file.rank)
        if ended.rank is not None:
            job.ended.append(ended)
            job.failed = True
            self._told_error(job, ended)

    def _told_error(self, job: Job, ended: Ended) -> None:
        """The error that a launcher or an error file tells of, unless the rank wrote it itself."""
        if not ended.error or ended.rank is None:
            return
        raised = Raised(ended.error, ended.message or "", ended.frame, 0)
        text = f"{raised.type}: {raised.message}" if raised.message else raised.type
        written = job.log(ended.rank).troubles
        if any(one.raised is not None and one.raised.type == raised.type for one in written):
            return
        line = replace(ended.line, text=text[:CUT], time_ns=ended.time_ns)
        role, cause, pattern, said = self._verdict(raised, text)
        job.log(ended.rank).trouble(
            Trouble(line, "error", cause, role, pattern, raised.frame, raised, said)
        )

    def _close(self, file: _File) -> None:
        """A file is over: local ranks become ranks."""
        for log in (log for job in self.jobs.values() for log in job.ranks.values()):
            log.close()
        offset = file.offset or 0
        for attempt, local in sorted(file.locals):
            self.jobs[attempt].rename(("local", file.number, local), local + offset)
        for job in self.jobs.values():
            for ended in job.ended:
                if ended.rank is None and ended.local is not None:
                    ended.rank = ended.local + offset
                    ended.local = None
