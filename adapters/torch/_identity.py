"""What a process group knows of the job: rank, world size, and a uid that all ranks agree on."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters.torch._guard import guarded

__all__ = ["bind_identity"]

STORE_BOUND_S = 1.0


@guarded("identity")
def bind_identity() -> None:
    """Hand the session what the default process group knows, when it is up."""
    if dist.is_available() and dist.is_initialized():
        recorder.bind_identity(
            rank=dist.get_rank(), world_size=dist.get_world_size(), uid_store=agree
        )


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
