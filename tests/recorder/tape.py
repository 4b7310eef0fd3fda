"""A recorder on a journal of its own, and what is read back from that journal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit import recorder
from tracekit.dataset.decode import Origin, decode
from tracekit.journal import JournalWriter
from tracekit.journal.format import Live
from tracekit.journal.reader import JournalReader, open_journal
from tracekit.model import KINDS

STEM = "rank-00000.00c0ffee-1"


@dataclass
class Tape:
    """A running recorder; what it holds can be read at any time."""

    folder: Path
    recorder: recorder.Recorder
    writer: JournalWriter
    _said: list[str]

    def said(self) -> list[str]:
        """What the user was told, each message once; the journal's thread tells it."""
        deadline = time.monotonic() + 10
        while not self._said and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._said

    def journal(self) -> JournalReader:
        return open_journal(self.folder / f"{STEM}.head.tkj")

    def spans(self, name: str | None = None) -> list[dict[str, Any]]:
        """The closed spans in the order of their records, attributes as Python values."""
        return [row for row in self._rows(0) if name in (None, row["name"])]

    def span(self, name: str) -> dict[str, Any]:
        """The only span of this name."""
        (row,) = self.spans(name)
        return row

    def events(self) -> list[dict[str, Any]]:
        return self._rows(1)

    def _rows(self, table: int) -> list[dict[str, Any]]:
        journal = self.journal()
        origin = Origin("run", 0, 0, 0)
        tables = [decode(batch, journal.definitions, origin)[table] for batch in journal.records()]
        rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
        for row in rows:
            pairs = row["attributes"] or []
            row["attributes"] = {key: json.loads(value) for key, value in pairs}
        return rows

    def open_spans(self) -> list[tuple[str, str, int]]:
        """Kind, name and id of the spans in the table of open ones, the oldest first."""
        journal = self.journal()
        rows = sorted(journal.open_rows().tolist(), key=lambda row: row[7])
        names = journal.definitions.names
        return [(KINDS[row[1] & 0xFF], names[row[1] >> 8 & 0x3FFF], row[7]) for row in rows]

    def counted(self, word: Live) -> int:
        return self.journal().live(word)


@contextmanager
def recording(folder: Path, **options: Any) -> Iterator[Tape]:
    """Record into a journal in this folder; everything this thread does inside goes there."""
    said: list[str] = []

    def say(message: str) -> None:
        if message not in said:
            said.append(message)

    writer = JournalWriter(folder, STEM, {"rank": 0}, say=say, **options)
    made = recorder.Recorder(writer, 0, 1)
    writer.retire = made.retire_before
    recorder.install(made)
    try:
        yield Tape(folder, made, writer, said)
    finally:
        made.close()
        recorder.remove(made)
