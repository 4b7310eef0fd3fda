"""NCCL's own log, asked for by environment and written into the run's directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from pathlib import Path

from tracekit.recorder import say_once

__all__ = ["NcclLog"]

_FILE = "NCCL_DEBUG_FILE"
_ASKED = {
    "NCCL_DEBUG": "INFO",
    # Start-up, network and topology: some 100 KB a process. Not COLL, a line for each collective.
    "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",  # since 2.26; without it only warnings have a time
    "NCCL_DEBUG_TIMESTAMP_FORMAT": "[%F %T%z] ",
}


class NcclLog:
    """Sets what NCCL reads when it is loaded; what the user has set stays."""

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._file: str | None = None

    def point(self, attempt_dir: Path) -> None:
        """Let logs go into this attempt; also when the run moves before NCCL has begun.

        Never raises: what cannot be done is said once.
        """
        told = self._environ.get(_FILE)
        if told and told != self._file:
            say_once(f"{_FILE} is set: NCCL's log goes to {told}, not into the run")
            return
        folder = attempt_dir / "nccl"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            say_once(f"no log of NCCL: {folder}: {error.strerror or error}")
            return
        if self._file is not None and Path(self._file).parent != folder:
            with contextlib.suppress(OSError):
                Path(self._file).parent.rmdir()
        for name, value in _ASKED.items():
            self._environ.setdefault(name, value)
        self._file = self._environ[_FILE] = str(folder / "%h.%p.log")
