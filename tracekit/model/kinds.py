"""What kinds of spans there are, and the class each kind has in the partition of a step."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CLASSES", "CLASS_OF_KIND", "KINDS", "Clock", "kind_code"]

KINDS: tuple[str, ...] = (
    "user",
    "step",
    "data",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "comm",
    "checkpoint",
    "eval",
    "compile",
    "gc",
    "init",
    "launch",
    "kernel",
    "memcpy",
    "io",
)
"""Every kind; its place is its code in the journal, so names are only ever appended."""

CLASSES: tuple[str, ...] = (
    "compute",
    "exposed_communication",
    "data",
    "checkpoint",
    "eval",
    "compile",
    "gc",
    "other",
)
"""The classes of the partition of a step, the first that applies wins."""

CLASS_OF_KIND: dict[str, str] = {
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "kernel": "compute",
    "comm": "exposed_communication",
    "data": "data",
    "transfer": "data",
    "checkpoint": "checkpoint",
    "eval": "eval",
    "compile": "compile",
    "gc": "gc",
}
"""Kinds missing here (user, step, init, launch, memcpy, io) leave an instant as ``other``."""

_CODES = {kind: code for code, kind in enumerate(KINDS)}


class Clock(IntEnum):
    """Where the times of a span were taken."""

    HOST = 0
    DEVICE = 1


def kind_code(kind: str) -> int:
    """The code of a kind; an unknown kind is recorded as ``user``, never refused."""
    return _CODES.get(kind, 0)
