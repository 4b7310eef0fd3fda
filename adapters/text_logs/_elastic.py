"""What torchelastic says of the end: the summary that the launcher prints, and error files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.adapters.text_logs._dates import Dates
from tracekit.adapters.text_logs._job import Ended
from tracekit.adapters.text_logs._rank_log import CUT, Line
from tracekit.adapters.text_logs._tags import tagged
from tracekit.adapters.text_logs._traceback import TracebackReader

__all__ = ["Summary", "is_error_file", "read_error_file"]

_HEAD = re.compile(r"(?:^|\s)(?:Failures:|Root Cause \(first observed failure\):)\s{0,64}$")
_ITEM = re.compile(r"\[\d{1,6}\]:\s{0,64}$")
_FIELD = re.compile(r"(?:^|\s)(time|host|rank|exitcode|error_file|traceback) {0,6}: ?(.{0,600})$")
_RULE = re.compile(r"(?:-{20,200}|={20,200})\s{0,64}$")
_LARGEST_ERROR_FILE = 1 << 20


@dataclass(slots=True)
class Summary:
    """Reads the summary of failures, line by line."""

    inside: bool = False
    _fields: dict[str, str] = field(default_factory=dict)
    _traceback: TracebackReader = field(default_factory=TracebackReader)
    _raised: tuple[str, str, str | None] | None = None

    def take(self, text: str, line: Line, dates: Dates) -> tuple[bool, Ended | None]:
        """Read a line: whether it is a part of the summary, and the failure that it ends."""
        if not self.inside:
            if "Failures:" not in text and "Root Cause (first" not in text:
                return False, None
            self.inside = _HEAD.search(text) is not None
            return self.inside, None
        if _HEAD.search(text):
            return True, self._done(line, dates)
        if _ITEM.search(text) and len(text) < 200:
            return True, self._done(line, dates)
        if _RULE.search(text):
            done = self._done(line, dates)
            self.inside = "=" not in text[-20:]
            return True, done
        match = _FIELD.search(text, 0, 600)
        if match is not None and "traceback" not in self._fields:
            self._fields[match[1]] = match[2].strip()
            text = match[2]
        if "traceback" in self._fields:
            found = self._traceback.take(0, text)
            if found is not None and not isinstance(found, bool):
                self._raised = found.type, found.message, found.frame
        elif match is None and text.strip():
            self.inside = False
            return False, None
        return True, None

    def _done(self, line: Line, dates: Dates) -> Ended | None:
        told, raised = self._fields, self._raised
        self._fields, self._raised, self._traceback = {}, None, TracebackReader()
        rank, code = (re.match(r"-?\d{1,9}", told.get(key, "")) for key in ("rank", "exitcode"))
        if rank is None:
            return None
        local = re.search(r"local_rank: (\d{1,6})", told["rank"])
        pid = re.search(r"pid: (\d{1,10})", told.get("exitcode", ""))
        number = int(code[0]) if code else None
        stamp = tagged(told.get("time", "")).stamp
        ended = Ended(
            int(rank[0]), number, -number if number is not None and number < 0 else None, line,
            int(pid[1]) if pid else None, int(local[1]) if local else None, told.get("host"),
            time_ns=dates.unix_ns(stamp, "elastic") if stamp else None,
        )  # fmt: skip
        if raised is not None:
            ended.error, ended.message, ended.frame = raised
        return ended


def is_error_file(head: bytes) -> bool:
    """Whether a file begins as torchelastic's error files do."""
    start = head[:200].lstrip()
    return (
        start.startswith(b'{"message"')
        and b"Traceback" in head + b"Traceback"
        and (b"extraInfo" in head or b'"message": {' in start)
    )


def read_error_file(path: Path, name: str, rank: int | None) -> Ended:
    """Read an error file. Raises ``OSError`` or ``ValueError``."""
    with path.open("rb") as file:
        value = json.loads(file.read(_LARGEST_ERROR_FILE))
    told: Any = value.get("message") if isinstance(value, dict) else None
    if isinstance(told, str):
        told = {"message": told}
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        raise ValueError("not an error file")
    more = told.get("extraInfo")
    extra: dict[str, Any] = more if isinstance(more, dict) else {}
    kind, _, message = told["message"].partition(":")
    seconds = re.match(r"\d{1,11}(?:\.\d+)?", str(extra.get("timestamp") or ""))
    time_ns = round(float(seconds[0]) * 1e9) if seconds else None
    frame, error, text = None, kind.strip(), message.strip()
    for raised in _raised(str(extra.get("py_callstack") or "")):
        frame = raised[2] or frame
    line = Line(f"{name}:1", 0, time_ns, told["message"][:CUT])
    return Ended(rank, 1, None, line, error=error, message=text[:CUT], frame=frame, time_ns=time_ns)


def _raised(text: str) -> Iterator[tuple[str, str, str | None]]:
    reader = TracebackReader()
    for number, line in enumerate(text.splitlines()[:20_000]):
        found = reader.take(number, line[:2000])
        if found is not None and not isinstance(found, bool):
            yield found.type, found.message, found.frame
