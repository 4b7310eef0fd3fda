"""``tracekit import``: what other tools recorded becomes a run."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._foreign import import_into, look_into
from tracekit.errors import InputError, UsageError

__all__ = ["command"]


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Foreign files, or folders of them.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="RUN", help="The run directory to make.")
    ],
) -> int:
    """Read what other tools recorded into a run directory; kinds are told by content."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if any(output.iterdir()):
            raise UsageError(f"{output}: is there already; name a new directory")
    looked = look_into(paths)
    target = output.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.mkdir(parents=True)
        done = import_into(looked, beside)
        os.replace(beside, target)
    except OSError as error:
        raise InputError(output, error.strerror or str(error)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    typer.echo(f"{done.told} in {output}")
    return 2 if any(path in looked.found.unknown for path in paths) else 0
