"""What a process group knows of the job: rank, world size, and a uid that all ranks agree on."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from tracekit import recorder
from tracekit.adapters.torch._ddp import Replica
from tracekit.adapters.torch._guard import guarded

__all__ = ["bind_identity", "tell_rank"]

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


@guarded("facts")
def tell_rank(model: torch.nn.Module, replica: Replica | None) -> None:
    """Record what is known of this rank's part in the job."""
    parameters = list(model.parameters())
    facts: dict[str, object] = {
        "version": torch.__version__,
        "device": str(parameters[0].device) if parameters else "cpu",
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "parallel": "ddp" if replica is not None else "none",
    }
    if replica is not None:
        buckets, _ = replica.buckets()
        facts |= {
            "backend": dist.get_backend(replica.process_group),
            "gradient_bytes": replica.gradient_bytes,
            "buckets": len(buckets) if buckets is not None else None,
        }
        replica.group.tell()
    recorder.fact("torch", facts)
