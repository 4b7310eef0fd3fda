"""Warnings, and the lines of information that the table knows, kept once and counted."""

from __future__ import annotations

import re

from tracekit.adapters.nccl_log._state import Notice, Process, Stamp
from tracekit.adapters.nccl_log._table import Meaning, meaning_of_warning

__all__ = ["note", "peer_of", "warning"]

_PEER = re.compile(rb"(?<![\w.:\[%-])([\w.:%-]{1,80})(?:\[[^\]\s]{0,80}\])?<(\d{1,5})>")
_QUEUE = re.compile(rb"local GID [\w:.]{2,60}, remote GID [\w:.]{2,60}")
_MOST, _MOST_UNKNOWN, _LONGEST = 128, 16, 400


def warning(process: Process, message: bytes, place: str, stamp: Stamp, device: int | None) -> None:
    """Keep a warning with what the table says it means."""
    meaning = meaning_of_warning(message, place)
    if meaning is None:
        where = place.rpartition(":")[0].encode()
        meaning = Meaning((where,), (), None, "unknown", "warn", peer=True)
        unknown = sum(1 for one in process.notices.values() if one.role == "unknown")
        if unknown >= _MOST_UNKNOWN:
            process.left_out += 1
            return
    note(process, "WARN", meaning, message, place, stamp, device)


def note(
    process: Process,
    level: str,
    meaning: Meaning,
    message: bytes,
    place: str,
    stamp: Stamp,
    device: int | None,
) -> None:
    """Keep a message once for each thing it is about, and count the others."""
    other = peer_of(message) if meaning.peer else None
    role = meaning.role
    if meaning.recovers:  # what failed before is no cause of an end
        process.recovers = True
        for earlier in process.notices.values():
            if earlier.cause == meaning.cause and earlier.role == "primary":
                earlier.role = "note"
    elif process.recovers and meaning.cause == "net_port" and not meaning.final:
        role = "note"
    what = b"|".join(meaning.match).decode("utf-8", "replace")
    queue = _QUEUE.search(message[:2048])  # each queue is worth a look of its own
    key = what, other or (queue[0].decode("ascii", "replace") if queue else "")
    known = process.notices.get(key)
    if known is not None:
        known.count += 1
        known.last = stamp
        return
    if len(process.notices) >= _MOST:
        process.left_out += 1
        return
    text = message[: 4 * _LONGEST].decode("utf-8", "replace").strip()[:_LONGEST]
    process.notices[key] = Notice(
        level, meaning.cause, role, text, place[:200], stamp, stamp, 1, device, other
    )


def peer_of(message: bytes) -> str | None:
    """The host or address that a message names with a port, as NCCL writes them."""
    found = _PEER.search(message[:2048])
    return found[1].decode("ascii", "replace") if found else None
