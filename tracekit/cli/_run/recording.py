"""The recording of a run whose script knows nothing of it."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

from tracekit import recorder
from tracekit.adapters._imported import when_imported
from tracekit.cli._run.children import tell_children
from tracekit.cli._run.ranks import tell_ranks
from tracekit.cli._run.target import Target
from tracekit.session import Options, Session, begin

__all__ = ["start_recording"]

_FRAMEWORKS = {
    "tensorflow": "tracekit.adapters.tensorflow._auto",
    "torch": "tracekit.adapters.torch._auto",
}
"""Which module's ``attach()`` traces what a script makes of a framework once it imports it."""


def start_recording(target: Target) -> None:
    """Record this process, and trace the frameworks that the script will import.

    Imports none of them; whatever goes wrong is said and the script runs.
    """
    try:
        session = _begin(target)
        if session is None:
            return
        session.start_agent()
        trace_imports()
        tell_ranks()
    except Exception as error:
        recorder.say_once(f"nothing is traced by itself: {type(error).__name__}: {error}")


def _begin(target: Target) -> Session | None:
    """Begin as ``start()`` does; that nobody said the rank is no news here."""
    argument, sys.argv[0] = sys.argv[0], _name(target)  # a run without a label is called by it
    try:
        return begin(Options(run=target.label, dir=target.directory, nccl_log=target.nccl_log))
    finally:
        sys.argv[0] = argument


def _name(target: Target) -> str:
    return target.script or str(target.module).rpartition(".")[2]


def trace_imports() -> None:
    """Trace by itself what is made of a framework, from its import on, here and in children."""
    for framework, module in _FRAMEWORKS.items():
        when_imported(framework, partial(_attach, module))
    tell_children()


def _attach(module: str) -> None:
    import_module(module).attach()
