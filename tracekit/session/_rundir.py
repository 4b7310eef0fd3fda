"""Finding the run's directory so that all ranks of a job find the same one without talking."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tracekit.journal.process import boot_id, is_alive, namespace, process_start

__all__ = [
    "Place",
    "clock_offset",
    "fresh_uid",
    "join_by_cluster",
    "journal_folder",
    "remove_if_empty",
    "run_directory",
]

_JOIN_WITHIN_S = 120
_REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "fuse.gcsfuse", "fuse.s3fs", "fuse.sshfs",
    "fuseblk", "gpfs", "lustre", "nfs", "nfs4", "overlay-remote", "smb3", "virtiofs", "wekafs",
}  # fmt: skip
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(slots=True)
class Place:
    """Where one rank's files lie."""

    run_dir: Path
    attempt_dir: Path
    journal_dir: Path
    stem: str


def fresh_uid() -> str:
    """A new id for a run that nobody else gave one."""
    return secrets.token_hex(8)


def run_directory(base: Path, label: str | None, default: str, uid: str) -> tuple[Path, str]:
    """The directory of the run with this uid, made when new, and its label.

    It is ``base/<label>`` when the label was given and no other run has taken it, else
    ``base/<label>-<uid>``. Who comes second finds the first one's ``run.json``. Raises
    ``OSError`` when the directory cannot be made.
    """
    name = _SAFE.sub("-", label or default).strip("-.") or "run"
    short = _SAFE.sub("-", uid)[:40]
    candidates = [base / name, base / f"{name}-{short}"] if label else [base / f"{name}-{short}"]
    for path in candidates:
        path.mkdir(parents=True, exist_ok=True)
        if _claim(path / "run.json", {"uid": uid, "label": name})["uid"] == uid:
            return path, name
    raise OSError(f"{candidates[-1]} belongs to another run")


def clock_offset(folder: Path, domain: str, measured_ns: int) -> int:
    """One offset from monotonic to Unix time for all ranks of a clock domain.

    The first rank writes the offset it measured, the others take it: offsets measured one by
    one would differ by what NTP did in between, and ranks of one host could not be compared.
    """
    name = blake2b(domain.encode(), digest_size=4).hexdigest()
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
        written = {"domain": domain, "offset_ns": measured_ns}
        return int(_claim(folder / f"clock-{name}.json", written)["offset_ns"])
    return measured_ns


def join_by_cluster(base: Path, cluster: str, member: str, one_job: bool = False) -> str:
    """The uid of the run that a process of this cluster started within the last two minutes.

    A member joins once: when it comes again the job was started anew, and so is the run. With
    ``one_job``, of a cluster that no two jobs can have at a time, as one of addresses, it is not
    while the first one still lives: then two processes were told to be the same.
    """
    name = blake2b(cluster.encode(), digest_size=8).hexdigest()
    folder = base / ".joins"
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / f"{name}.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "r+") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        joined: dict[str, Any] = {"uid": fresh_uid(), "time": time.time(), "members": {}}
        with contextlib.suppress(ValueError, KeyError, TypeError):
            known = json.loads(file.read())
            recent = 0 <= time.time() - known["time"] < _JOIN_WITHIN_S
            members = known["members"]
            twice = one_job and member in members and _is_another(members[member])
            if recent and (member not in members or twice):
                joined = known
        joined["members"].setdefault(member, _myself())
        file.seek(0)
        file.truncate()
        file.write(json.dumps(joined))
        file.flush()
        return str(joined["uid"])


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "boot_id": boot_id(),
        "pid_ns": namespace("pid"),
        "pid": pid,
        "pid_start": process_start(pid),
    }


def _is_another(process: dict[str, Any]) -> bool:
    """Whether it is another process than this one that can be seen to live."""
    mine = _myself()
    here = all(process[name] == mine[name] for name in ("boot_id", "pid_ns"))
    if not here or process["pid"] == mine["pid"]:
        return False
    return is_alive(process, int(process["pid"]), 0, 0)


def journal_folder(attempt: Path, uid: str, scratch: Path) -> Path:
    """Where the journals lie: in the run directory, or in local scratch when that is remote."""
    if _file_system(attempt) in _REMOTE:
        return scratch / f"tracekit-{_SAFE.sub('-', uid)}" / attempt.name / "journal"
    return attempt / "journal"


def remove_if_empty(run_dir: Path, attempt_dir: Path) -> None:
    """Remove the directory of a run that turned out to be another one."""
    with contextlib.suppress(OSError):
        for folder in ("ranks", "journal"):
            (attempt_dir / folder).rmdir()
        for clock in attempt_dir.glob("clock-*.json"):
            clock.unlink()
        attempt_dir.rmdir()
        (run_dir / "run.json").unlink()
        run_dir.rmdir()


def _claim(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write a JSON file unless it exists; return what it holds. Nobody sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        if not path.exists():
            temporary.write_text(json.dumps(content))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    held = json.loads(path.read_text())
    if not isinstance(held, dict):
        raise ValueError(f"{path} does not hold an object")
    return held


def _file_system(path: Path) -> str:
    """The type of the file system that holds a path, as the kernel names it."""
    best, kind = "", ""
    target = str(path.resolve())
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, type_, *_ = line.split()
            mount = mount.replace("\\040", " ")
            inside = target == mount or target.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, type_
    return kind
