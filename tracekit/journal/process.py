"""Whether the process that writes a journal still lives; standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "boot_id",
    "is_alive",
    "namespace",
    "process_start",
    "process_state",
]

SILENT_NS = 60_000_000_000
"""Without a beat for so long, a process that cannot be looked at counts as gone."""


def boot_id() -> str:
    """The id of this boot of this machine; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def namespace(kind: str) -> str:
    """This process's namespace of a kind (``pid``, ``time``); empty where there is none."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; the name before may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 1 :].split()


def process_start(pid: int) -> int | None:
    """When a process started, in ticks since boot; with the pid it names a process for good."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def process_state(pid: int) -> str | None:
    """The state letter of a process (R, S, D, T, Z, …), None when there is none."""
    fields = _stat(pid)
    return fields[0] if fields else None


def is_alive(identity: Mapping[str, Any], pid: int, heartbeat_ns: int, offset_ns: int) -> bool:
    """Whether the writer of a journal lives, by what its identity says of the process.

    Looked up in /proc where the journal is of this boot and of this pid namespace (``boot_id``,
    ``pid_ns``, ``pid_start`` of the identity). Elsewhere its last beat decides.
    """
    boot = identity.get("boot_id")
    if boot and boot != boot_id():
        return abs(time.time_ns() - (heartbeat_ns + offset_ns)) < SILENT_NS
    if identity.get("pid_ns", namespace("pid")) != namespace("pid"):
        return time.monotonic_ns() - heartbeat_ns < SILENT_NS
    state = process_state(pid)
    if state is None or state in "ZXx":
        return False
    start = identity.get("pid_start")
    return start is None or start == process_start(pid)
