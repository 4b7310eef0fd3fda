"""Answering the agent of a job that hangs: a dump of the framework's last calls.

Called by the journal's thread. The file lies where the journal does, which is never a remote disk;
the agent takes it into the run.
"""

from __future__ import annotations

import contextlib
import os

from tracekit.journal.format import RING_SUFFIX
from tracekit.recorder import say_once
from tracekit.session._rundir import Place

__all__ = ["answer"]

_LARGEST = 8 << 20


def answer(question: int, place: Place) -> None:
    """Write the dump that was asked for; of all answers the last two stay. Never raises."""
    try:
        from tracekit.adapters._ring import NotTaken, take_ring

        try:
            dump = take_ring(stacks=bool(question & 1))
        except NotTaken as why:
            say_once(f"the job hangs; its last collectives are not dumped: {why}")
            return
        if dump is None or len(dump) > _LARGEST:
            return
        path = place.journal_dir / f"{place.stem}.{1 + (question >> 1) % 2}{RING_SUFFIX}"
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            scratch.write_bytes(dump)
            os.replace(scratch, path)
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
    except Exception as error:
        say_once(f"the job hangs; its last collectives could not be dumped: {error}")
