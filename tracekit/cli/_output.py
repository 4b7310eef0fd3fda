"""Where a result goes: stdout, or a file that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import InputError

__all__ = ["destination", "write_result"]


def write_result(text: str, output: Path | None) -> None:
    """Write a result. Raises ``InputError`` for a file that cannot be written."""
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with destination(output) as file:
        file.write(text.encode())


@contextlib.contextmanager
def destination(output: Path | None) -> Iterator[BinaryIO]:
    """What to write bytes to. Raises ``InputError`` for a file that cannot be written."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    plain = not output.exists() or output.is_file()  # else a pipe or a device
    target = output.with_name(f".{output.name}.{os.getpid()}") if plain else output
    try:
        with open(target, "wb") as file:
            yield file
        if plain:
            os.replace(target, output)
    except OSError as error:
        raise InputError(output, error.strerror or str(error)) from error
    finally:
        if plain:
            with contextlib.suppress(OSError):
                target.unlink()
