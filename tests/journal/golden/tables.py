"""What is read from journals, as text that a person can look through."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path

from tracekit.dataset.decode import Origin, decode
from tracekit.journal.definitions import Definitions
from tracekit.journal.reader import JournalReader, find_journals, open_journal


def tables_of(folder: Path) -> str:
    """Everything in the journals of a folder, one line a row, spans in the order of their ids."""
    lines: list[str] = []
    for head in find_journals(folder):
        journal = open_journal(head)
        lines += _head(journal, journal.definitions)
        origin = Origin("golden", journal.attempt, journal.rank, journal.offset_ns)
        for records in journal.records():
            for table, key in zip(
                decode(records, journal.definitions, origin), ("span_id", "time_ns"), strict=True
            ):
                lines += [
                    json.dumps({k: v for k, v in row.items() if v is not None}, ensure_ascii=False)
                    for row in sorted(table.to_pylist(), key=itemgetter(key))
                ]
    return "\n".join(lines) + "\n"


def _head(journal: JournalReader, definitions: Definitions) -> list[str]:
    return [
        json.dumps({"stem": journal.stem, "identity": journal.identity}),
        json.dumps({"stopped": journal.stopped, "torn": sum(r.torn for r in journal.records())}),
        json.dumps({"groups": journal.groups(), "open": journal.open_rows().tolist()}),
        *(json.dumps([f.name, f.value, f.time_ns], ensure_ascii=False) for f in definitions.facts),
    ]
