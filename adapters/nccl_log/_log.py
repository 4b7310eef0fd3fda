"""From files to what they tell: alone, as an importer, or of a run's own logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tracekit.adapters._reading import HEAD, Intake, Progress
from tracekit.adapters.nccl_log._jobs import Job, find_jobs
from tracekit.adapters.nccl_log._rows import Rows, rows_of
from tracekit.adapters.nccl_log._scanner import Scanner
from tracekit.adapters.nccl_log._source import encoding_of
from tracekit.dataset.facts import FactRow

__all__ = ["NcclLog", "NcclLogImporter", "read_logs", "recognize", "tables_of_run"]

_SIGNS = (b" NCCL INFO ", b" NCCL WARN ", b" NCCL TRACE ", b" NCCL CALL ", b"NCCL version ",
          b"RCCL version")  # fmt: skip
_MARGIN_NS = 60 * 1_000_000_000
OWN_LIMIT = 64 << 20
"""Bytes that are read of one file that a run of ours wrote; a training writes some 100 KB."""


@dataclass(slots=True)
class NcclLog:
    """What some files hold: jobs, the oldest first, and what was not used."""

    jobs: list[Job]
    messages: int = 0
    read: list[Path] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    versions: list[FactRow] = field(default_factory=list)

    def rows(self, run_id: str, attempt: int | None = None) -> Rows:
        """Everything as rows. Jobs become attempts, unless ``attempt`` says which one it is."""
        rows = Rows(run_id)
        if _mixed(self.jobs):  # the last one is judged: the one that has trouble, or the largest
            self.jobs.sort(key=lambda job: (_troubled(job), len(job.processes)))
        for number, job in enumerate(self.jobs):
            rows_of(job, rows, number if attempt is None else attempt, attempt is not None)
        if len(self.jobs) > 1 and attempt is None:
            about = [_about(job) for job in self.jobs]
            for number, job in enumerate(self.jobs):
                at = next((p.first for p in job.processes if p.first), None)
                value = {"jobs": about, "this": number, "mixed": _mixed(self.jobs)}
                source = at.source if at else None
                rows.facts.append(FactRow(run_id, number, None, "nccl_jobs", value, source=source))
        return rows


def _about(job: Job) -> dict[str, object]:
    hosts = sorted({process.host for process in job.processes})
    return {"processes": len(job.processes), "hosts": hosts[:8], "world": job.world}


def _troubled(job: Job) -> bool:
    return any(n.role == "primary" for p in job.processes for n in p.notices.values())


def _mixed(jobs: Sequence[Job]) -> bool:
    """Whether jobs ran at the same time, and did not follow each other."""
    return any(a.first < b.first < a.last for a in jobs for b in jobs if a is not b)


def recognize(head: bytes) -> bool:
    """Whether the beginning of a file has lines of NCCL's debug log."""
    encoding = encoding_of(head)
    if encoding is not None:
        head = head.decode(encoding, "replace").encode()
    elif b"\0" in head:
        head = head.replace(b"\0", b"")
    return any(sign in head for sign in _SIGNS)


def read_logs(
    paths: Iterable[Path],
    known: Mapping[tuple[str, int], int] | None = None,
    one_job: bool = False,
    limit: int | None = None,
) -> NcclLog:
    """Read files as logs of jobs; a file that cannot be read is named and costs itself alone.

    ``known`` says which rank a process is, by its short host name and pid. Of files longer than
    ``limit`` bytes only the first and the last part is read.
    """
    scanner, log = Scanner(), NcclLog([])
    for path in paths:
        try:
            found = scanner.read(path, limit=limit)
            if limit is not None and path.stat().st_size > limit:
                log.skipped.append((path, f"longer than {limit >> 20} MiB: its middle is not read"))
        except OSError as error:
            log.skipped.append((path, error.strerror or str(error)))
            continue
        if not found and not any(v[2].file == str(path) for v in scanner.versions):
            log.skipped.append((path, "no line of NCCL in it"))
        else:
            log.read.append(path)
    if scanner.crowded:
        log.skipped.append((Path(), f"{scanner.crowded} lines of more processes than are kept"))
    log.messages = scanner.messages
    log.jobs = find_jobs(scanner.processes.values(), known, one_job)
    return log


def _is_text(head: bytes) -> bool:
    return head.count(0) * 100 < len(head) or encoding_of(head) is not None


class NcclLogImporter:
    """Reads NCCL's debug logs, all files of one call together."""

    name = "nccl_log"
    shares = True
    """Whether files may hold lines for other importers, too."""

    @staticmethod
    def alone(head: bytes) -> bool:
        """Whether a file begins with nothing but NCCL's own lines, so that no other reader has
        anything to find in it."""
        lines = [line for line in head.replace(b"\0", b"").splitlines()[:-1] if line.strip()]
        own = sum(any(sign in line for sign in _SIGNS) for line in lines)
        return own > 0.98 * len(lines)

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether its beginning has lines of NCCL, or where other words come first, the rest."""
        if recognize(head):
            return True
        if len(head) < HEAD or not _is_text(head):
            return False
        size = path.stat().st_size
        with open(path, "rb") as file:
            for part in range(1, 8):
                file.seek(size * part // 8)
                if recognize(file.read(HEAD)):
                    return True
        return False

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read logs; the jobs in them become attempts."""
        progress(f"{len(paths)} NCCL logs")
        log = read_logs(paths)
        for path, reason in log.skipped:
            intake.skip(path, reason)
        for path in log.read:
            intake.took(path, self.name)
        for table, rows in log.rows(intake.run_id).tables().items():
            intake.write(table, rows)


def tables_of_run(
    run_dir: Path,
    run_id: str,
    processes: Mapping[int, Mapping[tuple[str, int], int]],
    began_ns: Mapping[int, int],
) -> tuple[dict[str, list[pa.Table]], list[Path], list[tuple[Path, str]]]:
    """What the logs say that ranks of a run of ours wrote into it, as tables by name.

    ``processes`` says which process was which rank in each attempt, ``began_ns`` when that began:
    times outside of it, as of clocks in another zone, are not used. Also returns the files that
    were used, and those that were not, with the reason.
    """
    found: dict[str, list[pa.Table]] = {}
    used: list[Path] = []
    skipped: list[tuple[Path, str]] = []
    for folder in sorted(run_dir.glob("attempt-*/nccl")):
        number = folder.parent.name.partition("-")[2]
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if not files or not number.isdigit():
            continue
        log = read_logs(files, processes.get(int(number)), one_job=True, limit=OWN_LIMIT)
        used += log.read
        skipped += log.skipped
        last_ns = max(path.stat().st_mtime_ns for path in files) + _MARGIN_NS
        rows = log.rows(run_id, int(number))
        rows.keep_between(began_ns.get(int(number), 0) - _MARGIN_NS, last_ns)
        for name, table in rows.tables().items():
            found.setdefault(name, []).append(table)
    return found, used, skipped
