"""Files of RAS become facts: one for each answer, in the order in which they were given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.adapters._reading import Intake, Progress
from tracekit.adapters.nccl_ras._json import read_json
from tracekit.adapters.nccl_ras._look import Look
from tracekit.adapters.nccl_ras._text import known_share, read_text
from tracekit.dataset.facts import FactRow, table_of

__all__ = ["NcclRasImporter", "Read", "read_looks", "recognize"]

_TEXT_SIGNS = (
    b"(unreachable via the RAS network)", b"RAS Monitor Mode", b"] PEER_DEAD: Process",
    b"] PEER_NEW: Process",
)  # fmt: skip
_EVENT = re.compile(rb'"event": ?"PEER_')
_LONGEST_JSON = 256 << 20
_MOST = 2000
"""Answers that are kept, the newest ones."""
_MOSTLY = 0.9


def recognize(head: bytes) -> bool:
    """Whether the beginning of a file is of RAS."""
    head = head.replace(b"\0", b"")
    report = b"Communicators..." in head and b"Ranks" in head and b"Job summary" in head
    table = b"Group     Comms" in head and b"# in group" in head.replace(b"  ", b" ")
    return report or table or any(sign in head for sign in _TEXT_SIGNS) or _is_json(head)


def _is_json(head: bytes) -> bool:
    if head.lstrip()[:1] != b"{" and b"\n{" not in head[:256]:
        return False
    return (b'"communicators_count"' in head and b'"cuda_driver_version"' in head) or bool(
        _EVENT.search(head)
    )


@dataclass(slots=True)
class Read:
    """What some files hold: answers, the oldest first, and what was not used."""

    looks: list[Look] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    read: list[Path] = field(default_factory=list)

    def ranks(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """The job's ranks of processes by host and pid, where a communicator has all GPUs."""
        found: dict[tuple[str, int], set[int]] = {}
        for look in self.looks:
            world = look.world
            for rank, process in world.members.items() if world is not None else ():
                found.setdefault(process.key, set()).add(rank)
        return {key: tuple(sorted(ranks)) for key, ranks in found.items()}

    def facts(self, run_id: str, attempt: int) -> Iterator[FactRow]:
        """A fact for each answer, and one for how many ranks the job has."""
        ranks = self.ranks()
        for number, look in enumerate(self.looks):
            value = {"look": number, "looks": len(self.looks), **look.told(ranks)}
            yield FactRow(
                run_id, attempt, None, "nccl_ras", value, time_ns=look.time_ns, source=look.source
            )
        sizes = [look.world.size for look in self.looks if look.world is not None]
        if sizes and sizes[-1] is not None:
            yield FactRow(run_id, attempt, None, "nccl_ras_world", {"size": sizes[-1]})


def read_looks(paths: Iterable[Path]) -> Read:
    """The answers in files. A file that cannot be read is named and costs itself alone.

    They are ordered by the times they tell, or where some tell none, by those of their files.
    """
    read = Read()
    timed: list[tuple[int, int, Look]] = []
    for number, path in enumerate(sorted(paths, key=_natural)):
        try:
            found, written_ns = _answers(path, read), path.stat().st_mtime_ns
        except OSError as error:
            read.skipped.append((path, error.strerror or str(error)))
            continue
        if not found:
            read.skipped.append((path, "no answer of RAS in it"))
            continue
        read.read.append(path)
        for look in found:
            look.written_ns = written_ns
        timed += [(written_ns, number, look) for look in found]
    if all(look.time_ns is not None for _, _, look in timed):  # else zones would be mixed
        timed.sort(key=lambda row: row[2].time_ns or 0)
    else:
        timed.sort(key=lambda row: row[:2])
    read.looks = [look for _, _, look in timed[-_MOST:]]
    if len(timed) > _MOST:
        left = len(timed) - _MOST
        read.skipped.append((read.read[0], f"{left} older answers than the last {_MOST}"))
    return read


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d{1,18})", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _answers(path: Path, read: Read) -> list[Look]:
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    found: list[Look] = []
    if _is_json(head):
        if path.stat().st_size > _LONGEST_JSON:
            read.skipped.append((path, f"longer than {_LONGEST_JSON >> 20} MiB"))
            return []
        text = path.read_bytes().replace(b"\0", b"").decode("utf-8", "replace")
        for one in read_json(str(path), text):
            if isinstance(one, str):
                read.skipped.append((path, one))
            else:
                found.append(one)
        return found
    found = list(read_text(str(path), _lines(path)))
    cut = [look for look in found if not look.whole]
    if cut:
        told = f"{len(cut)} reports that are cut off, the first one at line {cut[0].line}"
        read.skipped.append((path, told))
    return found


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file; of endless ones the parts count as lines."""
    with open(path, "rb") as file:
        while line := file.readline(1 << 16):
            yield line.replace(b"\0", b"").decode("utf-8", "replace")


class NcclRasImporter:
    """Reads what NCCL's RAS client printed, all files of one call together."""

    name = "nccl_ras"
    shares = True
    """Whether files may hold lines for other importers, too."""

    @staticmethod
    def alone(head: bytes) -> bool:
        """Whether a file has nothing but answers, so that no other reader has to look at it."""
        if _is_json(head):
            return True
        return known_share(head.replace(b"\0", b"").decode("utf-8", "replace")) >= _MOSTLY

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether its beginning is of RAS."""
        return recognize(head)

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read answers; what was cut off is named."""
        progress(f"{len(paths)} files of NCCL's RAS")
        read = read_looks(paths)
        for path, reason in read.skipped:
            intake.skip(path, reason)
        for path in read.read:
            intake.took(path, self.name)
        intake.write("facts", table_of(read.facts(intake.run_id, intake.attempt)))
