"""From bytes to lines of text: any of the usual encodings, cut at a length, without colours."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "LONGEST",
    "byte_lines",
    "decode_line",
    "lines_of",
    "plain",
    "texts_of",
    "wide_encoding",
]

LONGEST = 16 * 1024
"""Characters of a line that are looked at; what follows is not."""

_CHUNK = 1 << 20
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\x1b[@-_]")
_BAR = re.compile(r"[^|\n]{0,120}?\d{1,3}%\|")
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def wide_encoding(head: bytes) -> str | None:
    """The encoding of two bytes a character that a file begins in, if it does."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    sample = head[:4096]
    if len(sample) < 4:
        return None
    odd, even = sample[1::2].count(0), sample[0::2].count(0)
    if odd > 0.3 * len(sample) / 2 and odd > 4 * even:
        return "utf-16-le"
    if even > 0.3 * len(sample) / 2 and even > 4 * odd:
        return "utf-16-be"
    return None


def decode_line(raw: bytes) -> str:
    """A line as text: UTF-8, else GB18030, else UTF-8 with what is wrong replaced."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(raw) == LONGEST and error.start > LONGEST - 4:  # cut inside of a character
            return raw[: error.start].decode("utf-8")
    try:
        return raw.decode("gb18030")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def plain(text: str) -> str:
    """A line without colours and NULs."""
    if "\0" in text:
        text = text.replace("\0", "")
    return _ANSI.sub("", text) if "\x1b" in text else text


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1; bounded memory, whatever is in it.

    Raises ``OSError`` where the file cannot be read.
    """
    with path.open("rb") as file:
        wide = wide_encoding(file.read(4096))
        file.seek(0)
        if wide:
            for number, text in _wide_lines(file, wide):
                yield from ((number, part) for part in _texts(text, number))
        else:
            for number, raw in byte_lines(file):
                yield from ((number, part) for part in texts_of(raw, number))


def texts_of(raw: bytes, number: int) -> Iterator[str]:
    """The text of a line of bytes; of one that was drawn over, what is left of it."""
    return _texts(decode_line(raw), number)


def _texts(text: str, number: int) -> Iterator[str]:
    if number == 1:
        text = text.removeprefix("\ufeff")
    if "\r" in text:
        for part in _redrawn(text):
            yield plain(part)
    else:
        yield plain(text)


def _redrawn(text: str) -> Iterator[str]:
    """What is left of a line that was drawn over: no progress bars, but what follows them."""
    parts = [part for part in text.split("\r") if part.strip()]
    for part in parts:
        if not _BAR.match(part) or "[rank" in part or "Error" in part:
            yield part
    if not parts:
        yield ""


def byte_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1, cut at a length."""
    number, rest, dropping = 0, b"", False
    while chunk := file.read(_CHUNK):
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            if dropping:
                dropping = False  # the end of a line that was cut
                continue
            number += 1
            if rest:
                piece, rest = rest + piece[:LONGEST], b""
            yield number, piece[:LONGEST] if len(piece) > LONGEST else piece
        if dropping:
            continue
        rest = (rest + last[:LONGEST])[:LONGEST]
        if len(rest) == LONGEST:
            number += 1
            yield number, rest
            rest, dropping = b"", True
    if rest:
        yield number + 1, rest


def _wide_lines(file: BinaryIO, encoding: str) -> Iterator[tuple[int, str]]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    number, rest = 0, ""
    while chunk := file.read(_CHUNK):
        pieces = decoder.decode(chunk).lstrip("\ufeff").split("\n")
        pieces[0] = rest + pieces[0]
        rest = pieces.pop()[:LONGEST]
        for piece in pieces:
            number += 1
            yield number, piece[:LONGEST]
    if rest:
        yield number + 1, rest
