"""Python tracebacks put together from lines: the error, and the innermost frame of the user's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Raised", "TracebackReader", "user_frame"]

_BEGIN = re.compile(
    r"\s{0,64}(?:\|\s{0,64})?(?P<inner>Original )?Traceback \(most recent call last\):?\s{0,64}$"
)
_FRAME = re.compile(
    r'\s{0,200}File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<name>.{1,200}))?'
)
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?::\s?(?P<text>.{0,20000}))?$")
_CHAIN = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3[^/]{0,10}/|^<|/torch/|/bin/(?:torchrun|accelerate|deepspeed)$"
)
_STRAY_AT_MOST = 50


@dataclass(slots=True)
class Raised:
    """An exception that a rank printed."""

    type: str
    message: str
    frame: str | None
    """Its innermost frame of the user's code, else its innermost frame."""
    line: int
    """Number of the line in which the traceback begins."""


@dataclass(slots=True)
class TracebackReader:
    """Reads the tracebacks of one rank, line by line."""

    _frames: list[str] = field(default_factory=list)
    _begin: int = 0
    _inside: bool = False
    _inner: bool = False
    _stray: int = 0
    chained: bool = False
    """Whether the next traceback is of an error that followed from the last one."""

    @property
    def inside(self) -> bool:
        """Whether a traceback has begun and its error is still to come."""
        return self._inside

    def take(self, number: int, body: str) -> Raised | bool | None:
        """Read a line: the exception that it ends, True if it is a part of one, else None.

        A part of the exception of a data loader's worker counts instead of the one around it.
        """
        if "Traceback (most" in body and (match := _BEGIN.match(body)) is not None:
            self._inside, self._inner = True, match["inner"] is not None
            self._begin, self._stray = number, 0
            self._frames.clear()
            return True
        if not self._inside:
            if body.startswith(("During", "The above")) and _CHAIN.match(body):
                self.chained = True
                return True
            return None
        if not body.strip():
            return True
        if body[0] in " \t|+":
            if (match := _FRAME.match(body)) is not None and len(self._frames) < 2000:
                self._frames.append(
                    f"{match['file']}:{match['line']} {match['name'] or ''}".rstrip()
                )
            return True
        if (match := _ERROR.match(body)) is None:
            self._stray += 1
            self._inside = self._stray <= _STRAY_AT_MOST
            return None
        self._inside = False
        return Raised(
            match["type"], (match["text"] or "")[:400], user_frame(self._frames), self._begin
        )

    @property
    def inner(self) -> bool:
        """Whether the last exception came from inside of the one before it."""
        return self._inner


def user_frame(frames: list[str]) -> str | None:
    """The innermost frame of the user's code, else the innermost; the last one is innermost."""
    own = [frame for frame in frames if not _LIBRARY.search(frame.rpartition(":")[0])]
    return own[-1] if own else frames[-1] if frames else None
