"""From what was asked to the script that runs."""

from __future__ import annotations

from tracekit.cli._run.recording import start_recording
from tracekit.cli._run.script import prepare, run
from tracekit.cli._run.target import Target

__all__ = ["run_target"]


def run_target(target: Target) -> int:
    """Record this process and run the target in it; returns 0 where it comes to its end.

    Whatever the script raises passes through, ``SystemExit`` too.
    """
    prepare(target)
    start_recording(target)
    return run(target)
