"""Ranks that record into a run directory, in this process or in one that is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracekit import recorder
from tracekit.journal import JournalWriter
from tracekit.journal.process import boot_id, process_start
from tracekit.journal.reader import JournalReader, find_journals, open_journal
from tracekit.model import Collective
from tracekit.recorder import Recorder, SpanType

GROUP = "0011aabb"


def journal_folder(run_dir: Path, attempt: int = 0) -> Path:
    return run_dir / f"attempt-{attempt:03d}" / "journal"


def identity_of(rank: int, world_size: int, attempt: int, lives: bool) -> dict[str, Any]:
    """An identity; ``lives`` False is that of a process that is long gone."""
    return {
        "uid": "run-1",
        "rank": rank,
        "world_size": world_size,
        "attempt": attempt,
        "host": "node-a",
        "boot_id": boot_id(),
        "pid_start": process_start(os.getpid()) if lives else 1,
    }


@contextmanager
def recording(
    run_dir: Path,
    rank: int = 0,
    *,
    world_size: int = 1,
    attempt: int = 0,
    process: str = "00c0ffee-100",
    lives: bool = False,
    segment_bytes: int = 256 << 10,
    quota_bytes: int = 1 << 30,
    **identity: Any,
) -> Iterator[Recorder]:
    """Record as a rank inside; stopped in order at the end."""
    folder = journal_folder(run_dir, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "ranks").mkdir(exist_ok=True)
    writer = JournalWriter(
        folder,
        f"rank-{rank:05d}.{process}",
        {**identity_of(rank, world_size, attempt, lives), **identity},
        segment_bytes=segment_bytes,
        quota_bytes=quota_bytes,
    )
    made = Recorder(writer, rank, world_size, attempt)
    writer.retire = made.retire_before
    recorder.install(made)
    try:
        yield made
    finally:
        made.close()
        recorder.remove(made)


def killed(run_dir: Path, target: Path) -> Path:
    """The run as it would be had everything been killed at this moment."""
    shutil.copytree(run_dir, target)
    return target


def journals(run_dir: Path, attempt: int = 0) -> list[JournalReader]:
    return [open_journal(head) for head in find_journals(journal_folder(run_dir, attempt))]


def journal(run_dir: Path, attempt: int = 0) -> JournalReader:
    (found,) = journals(run_dir, attempt)
    return found


def spans(count: int, name: str = "work") -> None:
    """Record spans one after another."""
    kind = recorder.span_type(name)
    for _ in range(count):
        with kind:
            pass


def all_reduce() -> SpanType:
    return recorder.span_type("all_reduce", "comm", Collective("all_reduce", GROUP, 2, "float32"))


def collectives(count: int) -> None:
    kind = all_reduce()
    for seq in range(count):
        kind.end(kind.begin(seq, 64))
