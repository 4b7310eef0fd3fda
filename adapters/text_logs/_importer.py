"""Finds out whether a file is a text log, and reads such files into a run."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.adapters.text_logs._decode import decode_line, plain, wide_encoding
from tracekit.adapters.text_logs._elastic import is_error_file
from tracekit.adapters.text_logs._patterns import table
from tracekit.adapters.text_logs._reader import LogReader, is_nccl
from tracekit.adapters.text_logs._rows import JobRows
from tracekit.adapters.text_logs._tags import from_path, tagged

if TYPE_CHECKING:
    from tracekit.adapters._reading import Intake, Progress

__all__ = ["TextLogs", "read_logs", "recognise"]

_HEAD = 64 * 1024
_NAMES = re.compile(r"\.(?:log|out|err|txt)(?:\.\d{1,4})?$|^(?:stderr|stdout|log)(?:\.|$)", re.I)


def recognise(head: bytes, path: Path | None = None) -> bool:
    """Whether a file that begins like this is a text log: by what stands in its lines, and by its
    name only where that names a rank."""
    if not head or is_error_file(head):
        return bool(head)
    if not _is_text(head):
        return False
    wide = wide_encoding(head)
    text = head[:_HEAD].decode(wide, "replace") if wide else decode_line(head[:_HEAD])
    if path is not None and _NAMES.search(path.name) and from_path(path)[0] is not None:
        return True
    known = table()
    for line in text.splitlines()[:2000]:
        line = plain(line[:2000])
        if is_nccl(line):
            continue
        tag = tagged(line)
        if tag.rank is not None or tag.local is not None or "Traceback (most" in line:
            return True
        hit = known.find(line)
        if hit is not None and hit.row.role != "world":
            return True
        if tag.stamp is not None and path is not None and _NAMES.search(path.name):
            return True
    return False


def _is_text(head: bytes) -> bool:
    wide = wide_encoding(head)
    sample = head[:_HEAD]
    if wide is None and (sample.count(0) > len(sample) // 4 or sample[:4] == b"PAR1"):
        return False
    text = sample.decode(wide, "replace") if wide else decode_line(sample)
    odd = sum(1 for c in text if (c < " " and c not in "\t\n\r\x1b\x08\f\0") or c == "\ufffd")
    return odd <= len(text) // 20 and text.lstrip("\ufeff \r\n\t")[:1] not in ("{", "<")


def read_logs(
    paths: Sequence[Path],
    run_id: str = "",
    *,
    names: Callable[[Path], str] = str,
    skip: Callable[[Path, str], None] | None = None,
    took: Callable[[Path], None] | None = None,
    glance: bool = True,
) -> dict[str, pa.Table]:
    """Read logs of one job into rows of spans, events and facts, an attempt for each job in them.

    ``names`` says what a file is called in the sources of rows. What cannot be read is told to
    ``skip``, what was read to ``took``. ``glance`` false reads every line in full, which is slower
    and finds the same.
    """
    reader = LogReader(glance=glance)
    oldest = min((path.stat().st_mtime for path in paths if path.exists()), default=0.0)
    for path in paths:
        try:
            reader.read(path, names(path), oldest)
        except (OSError, ValueError) as error:
            if skip is not None:
                skip(path, getattr(error, "strerror", None) or str(error))
            continue
        if took is not None:
            took(path)
    run_id = run_id or secrets.token_hex(8)
    parts: dict[str, list[pa.Table]] = {"spans": [], "events": [], "facts": []}
    for job in reader.finish():
        for name, rows in JobRows(job, run_id, round(oldest * 1e9)).tables().items():
            parts[name].append(rows)
    return {
        name: pa.concat_tables(tables).unify_dictionaries()
        for name, tables in parts.items()
        if tables
    }


class TextLogs:
    """The importer of text logs."""

    name = "text_logs"
    shares = True
    """Its lines stand between those of others, as NCCL's: it reads files that others read too."""

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether a file is a text log. Raises ``OSError`` where it cannot be read."""
        if recognise(head, path):
            return True
        size = path.stat().st_size
        if size <= len(head) or not _NAMES.search(path.name) or not _is_text(head):
            return False
        with path.open("rb") as file:
            file.seek(max(len(head), size - _HEAD) // 2 * 2)
            return recognise(file.read(_HEAD), path)  # the trouble is mostly at the end

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read the logs as one run."""
        progress(f"reading {len(paths)} text logs")
        tables = read_logs(
            paths,
            intake.run_id,
            skip=intake.skip,
            took=lambda path: intake.took(path, self.name),
        )
        for name in ("facts", "events", "spans"):
            if name in tables:
                intake.write(name, tables[name])
