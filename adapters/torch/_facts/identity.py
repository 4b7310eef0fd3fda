"""What a process group knows of the job: rank, world size, and a uid that all ranks agree on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters.torch._guard import guarded
from tracekit.adapters.torch._loop import Loop

__all__ = ["bind_identity", "watch_alone"]

STORE_BOUND_S = 1.0
ALONE_AFTER = 100
"""Updates after which a training that has no process group is taken to be alone."""


@guarded("identity")
def bind_identity() -> None:
    """Hand the session what the default process group knows, when it is up."""
    if _is_up():
        recorder.bind_identity(
            rank=dist.get_rank(), world_size=dist.get_world_size(), uid_store=agree
        )


def watch_alone(loop: Loop) -> list[Callable[[], None]]:
    """Settle that a process which trains without others is rank 0 of 1; returns what undoes it.

    Until then its records stay in the journal, since they might be another rank's.
    """
    if _is_up():
        return []
    updates = itertools.count(1)

    def updated() -> None:
        if next(updates) == ALONE_AFTER:
            stop()
            if not _is_up():
                guarded("identity")(recorder.bind_identity)(alone=True)

    stop = loop.watch_updates(updated)
    return [stop]


def _is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def agree(key: str, proposal: str) -> str:
    """Set a value once in the job's own store; returns the one that won. One second at most.

    A key-value call, no collective. Raises ``TimeoutError`` or what the store raises.
    """
    answer: list[str] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            store = dist.distributed_c10d._get_default_store()
            if hasattr(store, "clone"):
                store = store.clone()  # a connection of its own: the job's is never kept waiting
                store.set_timeout(timedelta(seconds=STORE_BOUND_S))
            won = store.compare_set(key, "", proposal)
            answer.append(won.decode() if isinstance(won, bytes) else str(won))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=ask, name="tracekit-identity", daemon=True)
    thread.start()
    thread.join(STORE_BOUND_S)
    if answer:
        return answer[0]
    raise errors[0] if errors else TimeoutError(f"no answer in {STORE_BOUND_S} s")
