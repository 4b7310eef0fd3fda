"""The job-wide ids of communicators that were split off others, which no line tells since 2.23.

From 2.26 on NCCL makes a child's id of its parent's, the number of the split and the colour.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tracekit.adapters.nccl_log._state import Communicator, Process

__all__ = ["child_hash", "name_children", "parents"]

_WORD = (1 << 64) - 1
_SINCE = (2, 26)


def child_hash(parent: int, count: int, color: int) -> int:
    """The id of a child, from its parent's, the number of the split, and its colour."""
    state = (1, 1)
    for raw in (struct.pack("<Q", parent), struct.pack("<i", count), struct.pack("<i", color)):
        state = _absorb(state, raw)
    high, low = state
    high ^= high >> 31
    high = high * 0xBAC3BD562846DE6B & _WORD
    high = high + low & _WORD
    high ^= high >> 32
    return high * 0x995A187A14E7B445 & _WORD


def _absorb(state: tuple[int, int], raw: bytes) -> tuple[int, int]:
    one, other = state
    one ^= len(raw)
    for place in range(0, len(raw), 8):
        value = int.from_bytes(raw[place : place + 8], "little")
        one = one + other & _WORD
        other ^= one
        one ^= one >> 31
        one = one * 0x9DE62BBC8CEF3CE3 & _WORD
        other ^= other >> 32
        other = other * 0x485CD6311B599E79 & _WORD
        one = one + value & _WORD
    return one, other


def name_children(process: Process) -> None:
    """Give the children of a process's splits their ids, where all that they are made of is told,
    and each of them its number, where lines do not tell that."""
    makes_them = _version(process) >= _SINCE
    numbers: dict[str, int] = {}
    for comm, parent in parents(process):
        if comm.parent is not None and comm.color is not None:
            if comm.split_count is None:
                comm.split_count = numbers[comm.parent] = numbers.get(comm.parent, 0) + 1
            comm.split = f"{comm.split_count}/{comm.color}"
            told = parent.hash
            if makes_them and comm.hash is None and told and comm.counted:
                comm.hash = f"0x{child_hash(int(told, 16), comm.split_count, comm.color):x}"


def parents(process: Process) -> Iterator[tuple[Communicator, Communicator]]:
    """The communicators that were split off another one, with that one, in their order.

    A pointer means the communicator that it was last used for before.
    """
    behind: dict[str, Communicator] = {}
    for comm in process.all_comms:
        parent = behind.get(comm.parent or "")
        if parent is not None:
            yield comm, parent
        behind[comm.pointer] = comm


def _version(process: Process) -> tuple[int, ...]:
    words = (process.version[0] if process.version else "").split(".")[:2]
    return tuple(int(word) for word in words if word.isdigit())
