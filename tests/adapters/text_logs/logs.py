"""Logs in the shape of those that jobs leave, and the verdict over them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from tracekit.adapters.text_logs import TextLogs, read_logs
from tracekit.analysis import Analysis, analyze
from tracekit.dataset import TABLES
from tracekit.dataset.engine import DuckDB
from tracekit.findings import Finding, Severity

WRITTEN = 1_772_600_000.0
"""When all logs here were written last: 4 March 2026."""


def write(folder: Path, files: Mapping[str, str | bytes]) -> list[Path]:
    """Write files into a folder; returns their paths in order."""
    paths = []
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (WRITTEN, WRITTEN))
        paths.append(path)
    return paths


def verdict(folder: Path, files: Mapping[str, str | bytes] | str) -> Analysis:
    """The verdict over some logs; one text is one file of all ranks."""
    paths = write(folder, {"job.log": files} if isinstance(files, str) else files)
    for path in paths:
        with path.open("rb") as file:
            assert TextLogs().recognizes(path, file.read(1 << 16)), path
    return judged(paths)


def judged(paths: Iterable[Path]) -> Analysis:
    """The verdict over the logs in these files and folders."""
    found = [
        inner
        for path in paths
        for inner in (
            sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        )
    ]
    tables = read_both(found)
    with DuckDB() as engine:
        for name, schema in TABLES.items():
            engine.register(name, tables.get(name, schema.empty_table()))
        return analyze(engine)


def read_both(paths: Sequence[Path]) -> dict[str, pa.Table]:
    """What is read of logs: the same, whether ordinary lines are glanced at or read in full."""
    tables = read_logs(paths, "run", names=lambda path: path.name)
    in_full = read_logs(paths, "run", names=lambda path: path.name, glance=False)
    assert tables == in_full
    return tables


def alerts(result: Analysis) -> list[tuple[str, tuple[int, ...], str]]:
    """What is above information: id, ranks and certainty of each."""
    return [
        (finding.id, finding.ranks, finding.certainty.value)
        for finding in result.findings
        if finding.severity is not Severity.INFO
    ]


def first_errors(result: Analysis) -> Finding:
    """The finding that lists the first error of every rank."""
    return next(finding for finding in result.findings if "first_errors" in finding.evidence)


def c10(rank: int, text: str, time: str = "12:10:00.000000001", source: str = "cpp:607") -> str:
    """A line of c10d."""
    return f"[rank{rank}]:[E304 {time} ProcessGroupNCCL.{source}] {text}\n"


def watchdog(
    rank: int,
    seq: int,
    *,
    op: str = "ALLREDUCE",
    numel: int = 4096,
    enqueued: int | None = None,
    completed: int | None = None,
    group: str = "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]",
    ms: int = 600_000,
    time: str = "12:10:00.000000001",
) -> str:
    """What a rank writes whose watchdog gave up on a collective."""
    where = group.format(rank=rank)
    work = (
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)={ms})"
    )
    enqueued = seq if enqueued is None else enqueued
    completed = seq - 1 if completed is None else completed
    return (
        c10(
            rank,
            f"{where} Watchdog caught collective operation timeout: {work} ran for {ms + 12}"
            " milliseconds before timing out.",
            time,
        )
        + c10(
            rank,
            f"{where}  failure detected by watchdog at work sequence id: {seq} PG status: last"
            f" enqueued work: {enqueued}, last completed work: {completed}",
            time,
        )
        + c10(rank, f"{where} To avoid data inconsistency, we are taking the entire process down.")
    )


def dump_signal(rank: int, enqueued: int, completed: int, origin: int = 0) -> str:
    """What a rank writes that is told to dump because another one timed out."""
    return c10(
        rank,
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective"
        f" timeout from  rank {origin} and we will try our best to dump the debug info. Last"
        f" enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.This is most"
        " likely caused by incorrect usages of collectives",
    )


def traceback(rank: int, error: str, place: str = "train.py:41 step", prefix: str = "") -> str:
    """A traceback as torch's hook prints it."""
    file, _, rest = place.partition(":")
    line, _, name = rest.partition(" ")
    tag = prefix or f"[rank{rank}]: "
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/main.py", line 9, in <module>',
        "    main()",
        f'  File "/job/{file}", line {line}, in {name}',
        "    work()",
        '  File "/usr/lib/python3.11/site-packages/torch/nn/module.py", line 100, in call',
        "    return forward()",
        error,
    ]
    return "".join(f"{tag}{text}\n" for text in lines)


def elastic(codes: Mapping[int, int], first: int, *, time: str = "2026-03-04_12:10:01") -> str:
    """The summary of torchrun's launcher; ``first`` is what it calls the root cause."""

    def block(number: int, rank: int) -> str:
        code = codes[rank]
        signal = {-9: " (SIGKILL)", -15: " (SIGTERM)", -6: " (SIGABRT)"}.get(code, "")
        return (
            f"[{number}]:\n  time      : {time}\n  host      : node0\n"
            f"  rank      : {rank} (local_rank: {rank})\n"
            f"  exitcode  : {code} (pid: {4000 + rank}) {signal}\n  error_file: <N/A>\n"
            "  traceback : To enable traceback see: https://example.org\n"
        )

    others = "".join(block(n, rank) for n, rank in enumerate((r for r in codes if r != first), 1))
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\n"
        "train.py FAILED\n" + "-" * 60 + "\nFailures:\n" + others + "-" * 60 + "\n"
        "Root Cause (first observed failure):\n" + block(0, first) + "=" * 60 + "\n"
    )  # fmt: skip


def progress(ranks: Iterable[int], steps: int = 5, minute: int = 0) -> str:
    """Ordinary lines of a training."""
    return "".join(
        f"[rank{rank}]: 2026-03-04 12:{minute:02d}:{step:02d},{rank:03d} INFO step {step} ok\n"
        for step in range(steps)
        for rank in ranks
    )
