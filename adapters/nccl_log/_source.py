"""From a file to clean lines of bytes, a piece at a time: encodings, colours, endless lines."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["LONGEST_LINE", "encoding_of", "lines_of"]

LONGEST_LINE = 1 << 14
"""Bytes of a line that are looked at; what follows belongs to no message of NCCL."""

_PIECE = 1 << 20
_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]")
_BOMS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def encoding_of(head: bytes) -> str | None:
    """The encoding of two bytes a character that a file begins in; None where it has one a byte."""
    for bom, name in _BOMS:
        if head.startswith(bom) and (len(head) < 16 or head.count(0) * 8 > len(head)):
            return name  # junk may begin as such a file does, but is not half of zeros
    if len(head) < 16:
        return None
    even, odd = head[0:4096:2].count(0), head[1:4096:2].count(0)
    half = min(len(head), 4096) // 2
    if odd > 0.7 * half and even < 0.1 * half:
        return "utf-16-le"
    if even > 0.7 * half and odd < 0.1 * half:
        return "utf-16-be"
    return None


def lines_of(path: Path, limit: int | None = None) -> Iterator[list[bytes] | int]:
    """The lines of a file, many at a time, without their ends.

    NULs and escape sequences are taken out, two-byte encodings become UTF-8. Of a file longer than
    ``limit`` bytes the first and the last half of them are read, with the number of lines between
    them in its place. Raises ``OSError``.
    """
    with open(path, "rb") as file:
        encoding = encoding_of(file.read(4096))
        file.seek(0)
        size = path.stat().st_size
        if limit is not None and size > limit:
            part = limit // 4 * 2
            yield from _lines(file, encoding, part)
            file.seek(part - 1)
            within = file.read(1) != b"\n"  # the line it ended in counted as one already
            yield _ends(file, size - part) - within
        yield from _lines(file, encoding, None)


def _ends(file: BinaryIO, until: int) -> int:
    """Read up to a place, and count the ends of lines on the way."""
    count = 0
    while (left := until - file.tell()) > 0:
        count += file.read(min(left, _PIECE)).count(b"\n")
    return count


def _lines(file: BinaryIO, encoding: str | None, limit: int | None) -> Iterator[list[bytes]]:
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    rest = b""
    skipping = False
    while limit is None or limit > 0:
        piece = file.read(_PIECE if limit is None else min(_PIECE, limit))
        if not piece:
            break
        if limit is not None:
            limit -= len(piece)
        if decoder is not None:
            piece = decoder.decode(piece).encode()
        if b"\0" in piece:
            piece = piece.replace(b"\0", b"")
        lines = piece.split(b"\n")
        if skipping and len(lines) > 1:
            lines[0], skipping = b"", False
        elif skipping:
            continue
        if rest:
            lines[0] = rest + lines[0]
        rest = lines.pop()
        if len(rest) > LONGEST_LINE:
            rest, skipping = rest[:LONGEST_LINE], True
        if lines:
            yield _clean(lines) if b"\x1b" in piece else lines
    if rest:
        yield _clean([rest])


def _clean(lines: list[bytes]) -> list[bytes]:
    return [_ANSI.sub(b"", line[:LONGEST_LINE]) if b"\x1b" in line else line for line in lines]
