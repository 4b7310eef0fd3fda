"""What the callback and the functions for loops share: a recorder, an identity, the patches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tracekit import recorder
from tracekit.adapters.tensorflow._checkpoints import watch_checkpoints
from tracekit.adapters.tensorflow._cluster import world_of
from tracekit.adapters.tensorflow._functions import watch_functions, watch_optimizers
from tracekit.adapters.tensorflow._gradients import watch_gradients
from tracekit.adapters.tensorflow._guard import guarded
from tracekit.adapters.tensorflow._handle import Handle
from tracekit.adapters.tensorflow._loop import Loop, join
from tracekit.adapters.tensorflow._phases import watch_phases

__all__ = ["asked", "attach", "bind", "when_asked"]

_KEY_MS = 1000
_instead: list[Callable[[], None]] = []


def when_asked(stop: Callable[[], None]) -> None:
    """Call ``stop`` once the script asks for tracing itself: then nothing is traced unasked."""
    _instead.append(stop)


def asked() -> None:
    """The script asks for tracing itself."""
    while _instead:
        _instead.pop()()


@guarded("rank")
def bind(strategy: Any) -> None:
    """Start recording, and say which rank this is where the strategy's cluster knows."""
    recorder.current_or_start()
    known = world_of(strategy)
    if known is None:
        recorder.bind_identity(alone=True)
        return
    rank, world = known
    recorder.bind_identity(rank=rank, world_size=world, uid_store=_store(rank, world))


def _store(rank: int, world: int) -> Callable[[str, str], str] | None:
    """A value that the first worker sets for all: a key of TensorFlow's coordination service."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context: Any = module.context() if module is not None else None
    if world < 2 or not hasattr(context, "get_config_key_value"):
        return None

    def store(key: str, proposal: str) -> str:
        if rank == 0:
            context.set_config_key_value(key, proposal)
            return proposal
        return str(context.get_config_key_value(key, _KEY_MS))

    return store


def attach(handle: Handle, windows: tuple[int, int] | None, check_gradients: bool) -> Loop | None:
    """Replace what is to be seen; None where nothing records."""
    rec = recorder.current()
    if rec is None:
        return None
    loop = join(rec, windows)
    for watch in (watch_functions, watch_optimizers, watch_checkpoints):
        handle.undo += guarded(watch.__name__)(watch)() or []
    if loop.windows is None:  # a profile says the same, and more
        handle.undo += guarded("clock in the graph")(watch_phases)(loop) or []
    if check_gradients:
        handle.undo += watch_gradients(loop) or []
    return loop
