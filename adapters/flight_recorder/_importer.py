"""Any number of dumps, of one job or of several, become rows of one run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.adapters._reading import Intake, Progress
from tracekit.adapters.flight_recorder._dump import Dump, Signatures, reduce_dump
from tracekit.adapters.flight_recorder._jobs import Job, rank_of, separate
from tracekit.adapters.flight_recorder._loading import (
    Refused,
    is_called_dump,
    load,
    looks_like_dump,
)
from tracekit.adapters.flight_recorder._rows import Rows, rows_of
from tracekit.dataset.facts import table_of
from tracekit.dataset.parts import Held, batch_name, write_file

__all__ = ["FlightRecorderImporter", "tables_of_run"]

_KIND = "flight_recorder"
_OWN = {"dump": "dump", "group": "dump_group"}
"""The facts that a run does not have by itself, and what they are called there."""
_A_DAY = 86_400 * 10**9
_EARLY = 10**9
"""A file system may write times this much too early."""


class FlightRecorderImporter:
    """Reads dumps of ``torch.distributed``'s Flight Recorder, one file a rank."""

    name = _KIND

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether it is a pickle, or JSON with the keys of a dump."""
        return looks_like_dump(head)

    def expects(self, path: Path) -> bool:
        """Whether an empty file is called as a dump is, so that its rank is known to have none."""
        return is_called_dump(path)

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read dumps as the ranks of one run; the dumps of other jobs are named and left out."""
        signatures = Signatures()
        job = _read(paths, signatures, intake.skip, progress)
        if job is None:
            return
        for dump in (dump for dumps in job.dumps.values() for dump in dumps):
            intake.took(dump.path, _KIND)
        _notes(job, intake)
        _write(rows_of(job, signatures.listed, intake.run_id, intake.attempt), job, intake)


def tables_of_run(
    paths: Sequence[Path], run_id: str, attempt: int, world_size: int
) -> tuple[dict[str, pa.Table], list[tuple[Path, str]]]:
    """Spans and facts from the dumps that lie in a run, and the files that are not used, and why.

    Of its ranks the run knows more than dumps do: they tell of calls and groups alone.
    """
    skipped: list[tuple[Path, str]] = []
    signatures = Signatures()
    job = _read(paths, signatures, lambda path, reason: skipped.append((path, reason)))
    if job is None:
        return {}, skipped
    job.least_world = world_size
    rows = rows_of(job, signatures.listed, run_id, attempt)
    spans = rows.spans()
    facts = [replace(fact, name=_OWN[fact.name]) for fact in rows.facts if fact.name in _OWN]
    calls = spans.filter(pc.equal(spans["kind"].cast(pa.string()), "comm"))
    return {"spans": calls, "facts": table_of(facts)}, skipped


def _read(
    paths: Sequence[Path],
    signatures: Signatures,
    skip: Callable[[Path, str], None],
    progress: Progress = lambda _: None,
) -> Job | None:
    """The job with most dumps; what is of others is skipped."""
    with _without_collector():
        jobs = separate([*_dumps(paths, signatures, skip, progress)])
    for other in jobs[1:]:
        for dump in (dump for dumps in other.dumps.values() for dump in dumps):
            skip(dump.path, _of_another_job(other, jobs[0]))
    return jobs[0] if jobs else None


def _dumps(
    paths: Sequence[Path],
    signatures: Signatures,
    skip: Callable[[Path, str], None],
    progress: Progress,
) -> Iterator[Dump]:
    for number, path in enumerate(paths, 1):
        if number % 16 == 1:
            progress(f"{number} of {len(paths)}: {path.name}")
        try:
            dump = reduce_dump(path, load(path), signatures)
            rank = rank_of(dump)
            if rank is None:
                raise Refused("a dump, but neither its name nor its groups tell whose")
        except Refused as error:
            skip(path, str(error))
            continue
        dump.rank = rank
        dump.written_ns = _written(path, dump.newest_ns)
        if dump.odd:
            skip(path, f"{dump.odd} of {dump.entries} entries have another shape")
        yield dump


def _written(path: Path, newest_ns: int | None) -> int | None:
    """When a dump was written, by its file; None where the file cannot be the first copy."""
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        return None
    if newest_ns is None:
        return None
    return written if -_EARLY <= written - newest_ns <= _A_DAY else None


def _of_another_job(other: Job, job: Job) -> str:
    return (
        f"of another job ({_described(other)}) than what is analyzed ({_described(job)});"
        " give them to tracekit by themselves"
    )


def _described(job: Job) -> str:
    ranks = "1 rank" if len(job.dumps) == 1 else f"{len(job.dumps)} ranks"
    if job.newest_ns is None:
        return ranks
    last = datetime.fromtimestamp(job.newest_ns / 1e9, timezone.utc)
    return f"{ranks}, last call {last:%Y-%m-%d %H:%M:%S} UTC"


def _notes(job: Job, intake: Intake) -> None:
    versions = {dump.version for dumps in job.dumps.values() for dump in dumps}
    first = next(iter(job.dumps.values()))[0]
    if len(versions) > 1:
        listed = ", ".join(sorted(versions))
        intake.note(first.path, f"the dumps are of several versions of the format: {listed}")


def _write(rows: Rows, job: Job, intake: Intake) -> None:
    """Both tables as one file each, however many ranks there are."""
    world = job.world
    for table, content in (("spans", rows.spans()), ("facts", table_of(rows.facts))):
        held = [Held(intake.attempt, rank, "", world_size=world) for rank in sorted(job.dumps)]
        write_file(intake.run_dir / table / batch_name(_KIND, 0), table, [content], held)
        intake.rows[table] = intake.rows.get(table, 0) + len(content)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Dumps hold no cycles; looking for some takes half of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
