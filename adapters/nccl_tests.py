"""The tables that nccl-tests prints, old and new, and its JSON: bandwidths of each size.

A file may hold many runs, as a loop over pairs of hosts leaves them; other programs' lines may
stand between the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.adapters._reading import Intake, Progress
from tracekit.dataset.facts import FactRow, table_of

__all__ = ["NcclTestsImporter", "Run", "read_runs", "recognize"]

_TYPES = frozenset(
    (
        "int8", "char", "uint8", "int32", "int", "uint32", "int64", "uint64", "half", "float16",
        "float", "float32", "double", "float64", "bfloat16", "f8e4m3", "f8e5m2", "fp8_e4m3",
        "fp8_e5m2",
    )
)  # fmt: skip
_REDUCTIONS = frozenset(("sum", "prod", "max", "min", "avg", "mulsum", "none"))
_DEVICE = re.compile(
    r"#\s{1,8}Rank\s{1,8}(\d{1,7}) (?:Group\s{1,8}\d{1,7} )?Pid\s{1,12}(\d{1,10}) on\s{1,64}"
    r"([\w.-]{1,255}) device\s{1,8}(\d{1,4}) \[([0-9a-fA-Fx:.]{1,20})\] ?(.{0,80})"
)
_TEST = re.compile(r"\b(\w{1,40})_perf(?:_mpi)?\b")
_VERSION = re.compile(r"# nccl-tests version (\S{1,40}).{0,40}?nccl-library=(\d{1,8})")
_FAILED = re.compile(r"Test (?:NCCL |CUDA )?(?:failure|timeout).{0,200}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d$")
_MOST_ROWS, _MOST_DEVICES, _LONGEST = 512, 4096, 4096
_DTYPE_KEYS = ("out_of_place", "in_place")


@dataclass(slots=True)
class Run:
    """One run of one test."""

    file: str
    line: int
    test: str | None = None
    version: str | None = None
    library: str | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    average_gbs: float | None = None
    failed: str | None = None
    largest_line: int = 0

    @property
    def hosts(self) -> list[str]:
        """The hosts that took part."""
        return sorted({str(device["host"]) for device in self.devices})

    def value(self) -> dict[str, Any]:
        """The run as a fact. Bandwidth is of the largest size: a mean over sizes says nothing."""
        largest = max(self.rows, key=lambda row: row["size"], default=None)
        halves = [largest[key] for key in _DTYPE_KEYS if largest.get(key)] if largest else []
        return {
            "test": self.test or self._inferred(halves),
            "version": self.version,
            "library": self.library,
            "ranks": len(self.devices),
            "hosts": self.hosts,
            "devices": self.devices[:64],
            "rows": self.rows,
            "size": largest["size"] if largest else None,
            "algbw_gbs": max((half["algbw_gbs"] for half in halves), default=None),
            "busbw_gbs": max((half["busbw_gbs"] for half in halves), default=None),
            "average_busbw_gbs": self.average_gbs,
            "wrong": sum(
                row[key].get("wrong") or 0
                for row in self.rows
                for key in _DTYPE_KEYS
                if row.get(key)
            ),
            "failed": self.failed,
        }

    def _inferred(self, halves: Sequence[Mapping[str, Any]]) -> str | None:
        """The operation, by how it makes one bandwidth of the other; old tables do not name it."""
        ranks = len(self.devices)
        half = next((half for half in halves if half["algbw_gbs"] > 0), None)
        if half is None or ranks < 3:
            return None
        factor = half["busbw_gbs"] / half["algbw_gbs"]
        return "all_reduce" if abs(factor - 2 * (ranks - 1) / ranks) < 0.02 else None


def recognize(head: bytes) -> bool:
    """Whether the beginning of a file is of nccl-tests."""
    head = head.replace(b"\0", b"")
    table = b"algbw" in head and b"busbw" in head and b"#" in head
    return table or b"# Collective test starting" in head or _is_json(head)


def _is_json(head: bytes) -> bool:
    start = head.lstrip()[:1] == b"{"
    return start and b'"nccl_version"' in head and b'"config"' in head


def read_runs(path: Path) -> list[Run]:
    """The runs in a file, in their order; what is no row of a table is passed over.

    Raises ``OSError``.
    """
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    if _is_json(head):
        return _from_json(path)
    runs: list[Run] = []
    test: str | None = None
    for number, line in _lines(path):
        if "#" in line:
            begins = "# nccl-tests version" in line or "# Collective test starting" in line
            if begins or "# nThread" in line:
                if not runs or runs[-1].rows or runs[-1].devices:
                    runs.append(Run(str(path), number, test))
                found = _TEST.search(line)
                runs[-1].test = found[1] if found else runs[-1].test
            if runs:
                _comment(runs[-1], line)
            continue
        if "_perf" in line and (found := _TEST.search(line)) is not None:
            test = found[1]
        if "Test " in line and runs and (told := _FAILED.search(line)) is not None:
            runs[-1].failed = told[0]
        row = _row(line)
        if row is not None:
            if not runs:
                runs.append(Run(str(path), number, test))
            _add(runs[-1], row, number)
    return [run for run in runs if run.rows or run.failed]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open(path, "rb") as file:
        number = 0
        while True:
            line = file.readline(1 << 16)
            if not line:
                return
            number += line.endswith(b"\n") or len(line) < 1 << 16
            text = line[:_LONGEST].replace(b"\0", b"").decode("utf-8", "replace")
            yield number, text.rstrip("\r\n")


def _comment(run: Run, line: str) -> None:
    if "nccl-tests version" in line and (found := _VERSION.search(line)) is not None:
        run.version, run.library = found[1], found[2]
    elif "Rank" in line and (found := _DEVICE.search(line)) is not None:
        if len(run.devices) < _MOST_DEVICES:
            run.devices.append(
                {"rank": int(found[1]), "pid": int(found[2]), "host": found[3],
                 "device": int(found[4]), "bus": found[5], "name": found[6].strip()}
            )  # fmt: skip
    elif "Avg bus bandwidth" in line:
        words = line.rpartition(":")[2].split()
        run.average_gbs = _number(words[0]) if words else None


def _row(line: str) -> dict[str, Any] | None:
    """A row of either table: its numbers come in two halves, out of place and in place."""
    words = line.rpartition(">:")[2].split()
    if words and words[0].endswith(":") and words[0][:-1].isdigit():
        words = words[1:]  # the rank that srun -l puts in front
    if len(words) < 9 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    if words[2] not in _TYPES:
        return None
    at = 3
    reduction = root = None
    if words[at] in _REDUCTIONS:
        reduction, at = words[at], at + 1
    if len(words) > 2 and _DATE.match(words[-2]):
        words = words[:-2]
    if (len(words) - at) % 2 and words[at].lstrip("-").isdigit():
        root, at = int(words[at]), at + 1
    numbers = [None if word == "N/A" else _number(word) for word in words[at:]]
    half = len(numbers) // 2
    if half < 3 or len(numbers) % 2 or any(n is None for n in (*numbers[:3],)):
        return None
    row: dict[str, Any] = {"size": int(words[0]), "count": int(words[1]), "type": words[2],
                           "redop": reduction, "root": root}  # fmt: skip
    for key, part in zip(_DTYPE_KEYS, (numbers[:half], numbers[half:]), strict=True):
        if part[0] is not None and part[1] is not None and part[2] is not None:
            wrong = part[3] if half > 3 and part[3] is not None else None
            row[key] = {"time_us": part[0], "algbw_gbs": part[1], "busbw_gbs": part[2],
                        "wrong": int(wrong) if wrong is not None else None}  # fmt: skip
    return row


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def _add(run: Run, row: dict[str, Any], line: int) -> None:
    if len(run.rows) < _MOST_ROWS:
        if row["size"] >= max((known["size"] for known in run.rows), default=0):
            run.largest_line = line
        run.rows.append(row)


def _from_json(path: Path) -> list[Run]:
    """What ``-J`` writes."""
    try:
        told = json.loads(path.read_bytes())
    except ValueError:
        return []
    if not isinstance(told, dict):
        return []
    arguments = told.get("args")
    words = " ".join(map(str, arguments)) if isinstance(arguments, list) else str(arguments or "")
    found = _TEST.search(words)
    run = Run(str(path), 1, found[1] if found else None, str(told.get("version") or "") or None,
              str(told.get("nccl_version") or "") or None, largest_line=1)  # fmt: skip
    for place, device in enumerate(told.get("devices") or ()):
        if isinstance(device, dict):
            host = device.get("host") or device.get("hostname") or ""
            run.devices.append({"rank": device.get("rank", place), "host": str(host)})
    for row in told.get("results") or ():
        if isinstance(row, dict) and isinstance(row.get("size"), int):
            made = {name: row.get(name) for name in ("size", "count", "type", "redop", "root")}
            made.update({key: half for key in _DTYPE_KEYS if (half := _half(row.get(key)))})
            _add(run, made, 1)
    return [run] if run.rows else []


def _half(told: Any) -> dict[str, Any] | None:
    if not isinstance(told, dict):
        return None
    time = told.get("time", told.get("cpu_time"))
    numbers = [_number(str(n)) for n in (time, told.get("alg_bw"), told.get("bus_bw"))]
    if any(number is None for number in numbers):
        return None
    wrong = _number(str(told.get("nwrong")))
    return {"time_us": numbers[0], "algbw_gbs": numbers[1], "busbw_gbs": numbers[2],
            "wrong": int(wrong) if wrong is not None else None}  # fmt: skip


class NcclTestsImporter:
    """Reads what nccl-tests printed: a fact a run."""

    name = "nccl_tests"
    shares = True
    """Whether files may hold lines for other importers, too."""

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether its beginning is of nccl-tests."""
        return recognize(head)

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read tables; a file without a row is named."""
        rows = []
        for path in paths:
            try:
                runs = read_runs(path)
            except OSError as error:
                intake.skip(path, error.strerror or str(error))
                continue
            if not runs:
                intake.skip(path, "a table of nccl-tests without a row")
                continue
            intake.took(path, self.name)
            for run in runs:
                source = f"{run.file}:{run.largest_line or run.line}"
                value = run.value()
                rows.append(
                    FactRow(intake.run_id, intake.attempt, None, "nccl_tests", value, source=source)
                )
        intake.write("facts", table_of(rows))
