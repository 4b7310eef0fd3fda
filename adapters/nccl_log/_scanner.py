"""From lines to the processes that wrote them: who says it, when, and what handles it.

The hot loop of the reader: a line costs a few searches for fixed texts. What stands before a
message is the same for all lines of a thread, so it is understood once and then looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from tracekit.adapters.nccl_log import _messages
from tracekit.adapters.nccl_log._source import LONGEST_LINE, lines_of
from tracekit.adapters.nccl_log._state import Process, Raw, Stamp

__all__ = ["Scanner"]

_INFO = b" NCCL INFO "
_MARK = re.compile(rb" NCCL (INFO|WARN|TRACE|CALL) ")
_HOST = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_HEAD = re.compile(
    rb"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]{1,255}):(\d{1,10}):(\d{1,10}) \[(-?\d{1,5})\] "
)
_TIME = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_VERSION = re.compile(
    rb"[NR]CCL version ?:? ?(\d{1,3}\.\d{1,3}\.\d{1,3}[\w.-]{0,64}?)"
    rb"(?:\+(?:cuda|hip)([\w.]{1,40}))?(?::[0-9a-f]{1,40})?\s{0,8}$"
)
_OUTER_RANK = (
    re.compile(rb"\[\d{1,6},(\d{1,7})\]<std"),  # mpirun --tag-output
    re.compile(rb"\[rank[ =]?(\d{1,7})\]"),
    re.compile(rb"^\s{0,8}(\d{1,7}): "),  # srun -l
)
_CACHED = 1 << 16
_LONGEST_GLUE = 64
_MOST_PROCESSES = 1 << 16


class Scanner:
    """Reads any number of files; what it knows afterwards is in ``processes``."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, int], Process] = {}
        self.versions: list[tuple[str, str | None, Stamp]] = []
        """Versions told by lines that name no process."""
        self.order = 0
        self.messages = 0
        self.crowded = 0
        """Lines of processes beyond those that are kept."""
        self._keys: dict[bytes, tuple[Process, int, int | None]] = {}
        self._file = ""
        self._line = 0
        self._hosts: set[bytes] = set()
        self._pending: tuple[str, str | None, Stamp] | None = None

    def read(self, path: Path, name: str | None = None, limit: int | None = None) -> int:
        """Read a file; returns how many messages of NCCL it holds. Raises ``OSError``."""
        self._file, self._line = name or str(path), 0
        self._keys.clear()
        self._pending = None
        before = self.messages
        for piece in lines_of(path, limit):
            if isinstance(piece, int):
                self._line += piece
            else:
                self.feed(piece)
        return self.messages - before

    def feed(self, lines: Iterable[bytes]) -> None:
        """Take the next lines of a file."""
        number, order = self._line, self.order
        keys, handlers, other = self._keys, _messages.HANDLERS, _messages.other
        for line in lines:
            number += 1
            order += 1
            if b"CCL" not in line:
                continue
            place = line.find(_INFO)
            if place > 0 and len(line) <= LONGEST_LINE:
                prefix = line[:place]
                message = line[place + 11 :]
                at = prefix.rfind(b" ", 0, prefix.rfind(b" ")) + 1
                known = keys.get(prefix[at:])
                if known is not None and b" NCCL " not in message:
                    process = known[0]
                    self.messages += 1
                    process.lines += 1
                    time = _time(prefix) if at > 18 else None
                    stamp: Raw = (self._file, number, time, order)
                    process.last = stamp
                    if process.first is None:
                        process.first = Stamp(*stamp)
                    word = message[: message.find(b" ")]
                    handlers.get(word, other)(process, message, stamp)
                    continue
            self._line, self.order = number, order
            self._any(line[:LONGEST_LINE])
        self._line, self.order = number, order

    # What is not the usual line

    def _any(self, line: bytes) -> None:
        """A line of any shape: several messages on one, another level, a prefix not yet known."""
        line = line.rstrip(b"\r")
        marks = list(_MARK.finditer(line))
        start = 0
        for number, mark in enumerate(marks):
            end = len(line)
            if number + 1 < len(marks):
                end = self._head_before(line, marks[number + 1].start(), mark.end())
            self._message(line[start : mark.start()], mark[1].decode(), line[mark.end() : end])
            start = end
        if not marks:
            self._bare(line)

    def _head_before(self, line: bytes, place: int, least: int) -> int:
        """Where the head of a message begins that has its level at ``place``."""
        heads = list(_HEAD.finditer(line, least, place + 1))
        if not heads:
            return max(least, line.rfind(b" ", least, place - 4))
        found = heads[-1]
        host = found[1]
        if host not in self._hosts:
            for cut in range(1, min(len(host), _LONGEST_GLUE)):
                if host[cut:] in self._hosts:  # what stands before it ends another message
                    return found.start() + cut
        return found.start()

    def _message(self, prefix: bytes, level: str, message: bytes) -> None:
        told = prefix[-600:]
        times = [found.end() for found in _TIME.finditer(told)]
        after = len(prefix) - len(told) + times[-1] if times else 0  # a host may be glued to it
        heads = list(_HEAD.finditer(prefix[after:] + b" "))
        # What follows the head of a warning is the place it is printed from.
        head = heads[-1 if level == "INFO" else 0] if heads else None
        if head is None:
            outer, place = prefix, ""
            known = self._without_head(prefix, level)
        else:
            outer = prefix[: after + head.start()]
            place = prefix[after + head.end() :].decode("utf-8", "replace")
            known = self._process(outer, head[1], head[2], int(head[4]))
            if level == "INFO":
                self._remember(prefix, known)
        if known is None:
            self.crowded += 1
            return
        process, device = known[0], known[2]
        self.messages += 1
        process.lines += 1
        stamp = Stamp(self._file, self._line, _time(outer), self.order)
        process.last = stamp
        if process.first is None:
            process.first = stamp
        if self._pending is not None and process.version is None:
            process.version, self._pending = self._pending, None
        if device is not None and device >= 0 and head is not None:
            process.devices.add(device)
        if level == "WARN":
            _messages.warning(process, message, place, stamp, device)
        elif level == "CALL":
            _messages.call(process, message, stamp)
        else:
            handle = _messages.HANDLERS.get(message[: message.find(b" ")], _messages.other)
            handle(process, message, stamp)

    def _remember(self, prefix: bytes, known: tuple[Process, int, int | None] | None) -> None:
        at = prefix.rfind(b" ", 0, prefix.rfind(b" ")) + 1
        if known is not None and prefix.endswith(b"]"):
            if len(self._keys) >= _CACHED:
                self._keys.clear()
            self._keys[prefix[at:]] = known

    def _process(
        self, outer: bytes, host: bytes, pid: bytes, device: int | None
    ) -> tuple[Process, int, int | None] | None:
        name = host.decode("ascii", "replace")
        key = name, int(pid)
        process = self.processes.get(key)
        if process is None:
            if len(self.processes) >= _MOST_PROCESSES:
                return None
            process = self.processes[key] = Process(*key)
            self._hosts.add(host)
            process.outer_rank = _outer_rank(outer)
        return process, 0, device

    def _without_head(self, prefix: bytes, level: str) -> tuple[Process, int, int | None] | None:
        """A line whose host and pid were removed, or a call, which names no device."""
        if level == "CALL":
            parts = prefix.rsplit(b" ", 1)[-1].rsplit(b":", 2)
            if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
                host = parts[0][len(parts[0].rstrip(_HOST)) :]
                outer = prefix[: len(prefix) - len(host) - len(parts[1]) - len(parts[2]) - 2]
                return self._process(outer, host or b"?", parts[1][:10], None)
        device = -1
        tail = prefix[-8:]
        if tail.endswith(b"]") and b"[" in tail:
            number = tail[tail.rfind(b"[") + 1 : -1]
            device = int(number) if number.isdigit() else -1
        return self._process(prefix, b"?", str(device + 1).encode(), device)

    def _bare(self, line: bytes) -> None:
        """A line that names no process: a version, or one whose very beginning was removed."""
        for mark, level in ((b"NCCL INFO ", "INFO"), (b"NCCL WARN ", "WARN")):
            if line.startswith(mark):
                self._message(b"", level, line[len(mark) :])
                return
        place = line.find(b"CCL version")
        if place > 0:
            found = _VERSION.search(line, place - 1)
            if found is not None:
                stamp = Stamp(self._file, self._line, _time(line[:place]), self.order)
                version = found[1].decode(), found[2].decode() if found[2] else None, stamp
                self._pending = version
                if len(self.versions) < 4096:
                    self.versions.append(version)


def _outer_rank(outer: bytes) -> int | None:
    for pattern in _OUTER_RANK:
        found = pattern.search(outer[-512:])
        if found is not None:
            return int(found[1])
    return None


_days: dict[bytes, int] = {}


def _time(prefix: bytes) -> int | None:
    """The Unix time that a prefix tells, in nanoseconds; without a zone it is taken as UTC."""
    found = _TIME.search(prefix, max(0, len(prefix) - 512))
    if found is None:
        return None
    day = found[0][:10]
    midnight = _days.get(day)
    try:
        if midnight is None:
            year, month, date = int(found[1]), int(found[2]), int(found[3])
            midnight = int(datetime(year, month, date, tzinfo=timezone.utc).timestamp())
            if len(_days) < 4096:
                _days[day] = midnight
    except ValueError:
        return None
    seconds = int(found[4]) * 3600 + int(found[5]) * 60 + int(found[6])
    zone = found[8]
    if zone is not None and zone != b"Z":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        seconds += -60 * minutes if zone[:1] == b"+" else 60 * minutes
    part = int((found[7] or b"0").ljust(9, b"0"))
    return (midnight + seconds) * 1_000_000_000 + part
