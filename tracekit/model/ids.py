"""Identity without communication: ids that every rank derives alike from what it knows."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["host8", "span_id", "step_trace_id"]


def step_trace_id(uid: str, attempt: int, step: int) -> bytes:
    """The 16-byte OpenTelemetry trace id of one step of one attempt, the same on all ranks."""
    return blake2b(f"step\0{uid}\0{attempt}\0{step}".encode(), digest_size=16).digest()


def span_id(uid: str, attempt: int, rank: int, sequence: int) -> bytes:
    """The 8-byte OpenTelemetry span id of a rank's span with this local sequence."""
    text = f"span\0{uid}\0{attempt}\0{rank}\0{sequence}".encode()
    return blake2b(text, digest_size=8).digest()


def host8(host: str, boot_id: str) -> str:
    """Eight hex digits that tell hosts apart in file names, also two with one host name."""
    return blake2b(f"{host}\0{boot_id}".encode(), digest_size=4).hexdigest()
