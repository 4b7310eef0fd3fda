"""Files of the Inspector become facts about bandwidth and, where a trace has times, spans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit.adapters._reading import Intake, Progress
from tracekit.adapters.nccl_inspector._records import Counts, operations, read_records
from tracekit.adapters.nccl_inspector._sums import Group, Sums
from tracekit.dataset.facts import FactRow, table_of
from tracekit.dataset.schema import SPANS

__all__ = ["NcclInspectorImporter", "recognize"]

LANE = "group:nccl_inspector"
"""The lane of all spans of it: kernels of the library as the host saw them."""
_MOST_ROWS = 512


def recognize(head: bytes) -> bool:
    """Whether the beginning of a file is of the Inspector."""
    if not head.replace(b"\0", b"").lstrip().startswith(b"{"):
        return False
    body = b'"coll_perf"' in head or b'"p2p_perf"' in head or b'"dump_stats"' in head
    return body and b'"header"' in head


class NcclInspectorImporter:
    """Reads what NCCL's Inspector wrote, a file a process, all files of one call together."""

    name = "nccl_inspector"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether its beginning is of the Inspector."""
        return recognize(head)

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read records; lines that cannot be used are counted and the first one is named."""
        sums = Sums()
        read: dict[Path, Counts] = {}
        for path in paths:
            progress(path.name)
            counts = Counts()
            try:
                for record in read_records(path, counts):
                    sums.add(record, str(path))
            except OSError as error:
                intake.skip(path, error.strerror or str(error))
                continue
            if counts.unusable:
                intake.skip(path, f"{counts.unusable} lines not used; {counts.first_unusable}")
            if not counts.records:
                known = "sends and receives" if counts.messages else "records"
                intake.skip(path, f"no collective with a time of the GPU among its {known}")
                continue
            intake.took(path, self.name)
            read[path] = counts
        ranks = sums.ranks()
        facts = [*_facts(intake, sums, ranks, read)]
        intake.write("facts", table_of(facts))
        spans = [*_spans(intake, sums, ranks)]
        if spans:
            columns = [pa.array([row.get(c.name) for row in spans], c.type) for c in SPANS]
            intake.write("spans", pa.table(columns, schema=SPANS))


def _facts(
    intake: Intake, sums: Sums, ranks: dict[tuple[str, int], int], read: dict[Path, Counts]
) -> Iterator[FactRow]:
    def row(name: str, value: Any, rank: int | None, host: str | None, source: str) -> FactRow:
        return FactRow(intake.run_id, intake.attempt, rank, name, value, host, None, source)

    world = max((group.size for group in sums.groups.values()), default=0)
    told: set[tuple[str, int]] = set()
    for group in sorted(sums.groups.values(), key=lambda group: -group.size):
        for member, process in sorted(group.members.items()):
            rank, (host, pid), file = ranks.get(process), process, group.files[member]
            if rank is not None and process not in told:
                told.add(process)
                who = {"world_size": world, "host": host, "pid": pid, "from": "nccl_inspector"}
                yield row("rank", who, rank, host, f"{file}:1")
                counts = read[Path(file)]
                value = {
                    "host": host, "pid": pid, "records": counts.records,
                    "messages": counts.messages, "dropped": counts.dropped,
                    "by_host": counts.by_host, "versions": sorted(counts.versions),
                }  # fmt: skip
                yield row("nccl_inspector", value, rank, host, f"{file}:1")
        yield row("nccl_inspector_last", _last(group, ranks), None, None, "")
    rows = sorted(sums.tables(ranks), key=lambda pair: -pair[1]["time_us"] * pair[1]["calls"])
    for _, measured in rows[:_MOST_ROWS]:
        source = str((measured.get("shortest") or {}).get("source") or "")
        yield row("nccl_bandwidth", measured, None, None, source)


def _last(group: Group, ranks: dict[tuple[str, int], int]) -> dict[str, Any]:
    """How far each rank came: the operations in which ranks differ."""
    names = {rank: ranks.get(process) for rank, process in group.members.items()}
    differing = {}
    for op, last in group.last.items():
        if len(set(last.values())) > 1:
            differing[op] = {
                str(names[r] if names[r] is not None else r): number for r, number in last.items()
            }
    return {"group": group.id, "size": group.size, "there": len(group.members), "last": differing}


def _spans(
    intake: Intake, sums: Sums, ranks: dict[tuple[str, int], int]
) -> Iterator[dict[str, Any]]:
    """Collectives of the sample whose kernels' times are known."""
    ids: dict[int, int] = {}
    for group in sums.groups.values():
        for (op, number), seen in group.kept.items():
            about = operations()["operations"].get(op, {"op": op.lower()})
            for member, one in seen.items():
                rank = ranks.get(group.members[member])
                if rank is None or one.begin_us is None:
                    continue
                ids[rank] = ids.get(rank, 0) + 1
                source = json.dumps(f"{group.files[member]}:{one.line}")
                yield {
                    "run_id": intake.run_id, "attempt": intake.attempt, "rank": rank,
                    "kind": "kernel", "name": f"nccl:{about['op']}", "lane": LANE, "clock": "host",
                    "span_id": ids[rank], "start_ns": one.begin_us * 1000,
                    "duration_ns": int(one.took_us * 1000), "is_open": False, "status": "ok",
                    "collective_op": about["op"], "collective_group": group.id,
                    "collective_seq": number, "collective_bytes": one.nbytes,
                    "group_size": group.size, "attributes": [("source", source)],
                }  # fmt: skip
