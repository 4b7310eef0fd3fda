"""A TAR that is only appended to, and that two writers of the same files make the same."""

from __future__ import annotations

import shutil
from io import BytesIO
from os import SEEK_END
from tarfile import BLOCKSIZE, GNU_FORMAT, NUL, TarInfo
from typing import BinaryIO

__all__ = ["Archive"]


class Archive:
    """A TAR of plain files that belong to nobody and have no time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, name: str, content: BinaryIO) -> None:
        """Append a file: all that was written to ``content``, which can be sought in."""
        info = TarInfo(name)
        info.size = content.seek(0, SEEK_END)
        content.seek(0)
        # Trace processors do not know the records of pax, and GNU's sizes have no limit.
        self._file.write(info.tobuf(GNU_FORMAT))
        shutil.copyfileobj(content, self._file, 1 << 20)
        self._file.write(NUL * (-info.size % BLOCKSIZE))

    def add_bytes(self, name: str, content: bytes) -> None:
        """Append a small file."""
        self.add(name, BytesIO(content))

    def close(self) -> None:
        """Say that nothing more follows; the file stays open."""
        self._file.write(NUL * 2 * BLOCKSIZE)
