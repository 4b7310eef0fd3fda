"""From jobs to rows of facts, events and spans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tracekit.adapters.nccl_log._compare import describe, first_difference
from tracekit.adapters.nccl_log._jobs import Job, Member
from tracekit.adapters.nccl_log._splits import parents
from tracekit.adapters.nccl_log._state import Communicator, Notice, Process, Stamp
from tracekit.dataset.facts import FactRow, table_of
from tracekit.dataset.schema import EVENTS, SPANS

__all__ = ["Rows", "rows_of"]

_FIRST_ID = 1 << 40
"""Span ids of logs lie beyond those of a rank's own journal."""
_DEVICE = re.compile(r"NET/[^/]{1,64}/(\d{1,4})\b")
"""Which of the cards a connection uses, by its place among them."""
_PHASES = ("kernels", "alloc", "bootstrap", "allgathers", "topo", "graphs", "connections", "rest")


@dataclass(slots=True)
class Rows:
    """Rows of one run, not yet tables."""

    run_id: str
    facts: list[FactRow] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)

    def keep_between(self, first_ns: int, last_ns: int) -> None:
        """Leave out spans and events that lie outside of this time."""
        self.spans = [
            row for row in self.spans
            if first_ns <= row["start_ns"] and row["start_ns"] + row["duration_ns"] <= last_ns
        ]  # fmt: skip
        self.events = [row for row in self.events if first_ns <= row["time_ns"] <= last_ns]

    def tables(self) -> dict[str, pa.Table]:
        """The tables that have rows."""
        found = {"facts": table_of(self.facts)}
        for name, rows, schema in (("events", self.events, EVENTS), ("spans", self.spans, SPANS)):
            columns = {
                column.name: pa.array([row.get(column.name) for row in rows], column.type)
                for column in schema
            }
            found[name] = pa.table(columns, schema=schema)
        return {name: table for name, table in found.items() if len(table)}


def rows_of(job: Job, rows: Rows, attempt: int, own_run: bool = False) -> None:
    """Add what is known of a job. Of ``own_run`` the ranks are known already."""
    writer = _Writer(job, rows, attempt, own_run)
    writer.write()


class _Writer:
    def __init__(self, job: Job, rows: Rows, attempt: int, own_run: bool) -> None:
        self.job, self.rows, self.attempt, self.own_run = job, rows, attempt, own_run
        self.rank_of = {id(process): rank for rank, process in job.numbered()}
        self.group_of = {id(m.comm): name for name, members in job.groups.items() for m in members}
        self.parent_of = {
            id(comm): self.group_of.get(id(parent))
            for process in job.processes
            for comm, parent in parents(process)
        }
        self.ids = 0

    def fact(self, process: Process | None, name: str, value: Any, at: Stamp | None = None) -> None:
        """One fact of a process, or of the job."""
        rank = self.rank_of.get(id(process)) if process is not None else None
        host = process.host if process is not None else None
        self.rows.facts.append(
            FactRow(
                self.rows.run_id, self.attempt, rank, name, value, host=host,
                time_ns=at.time_ns if at else None, source=at.source if at else None,
            )
        )  # fmt: skip

    def write(self) -> None:
        job = self.job
        world = max((len(job.ranks), *(m.comm.nranks or 0 for m in self._world())), default=0)
        for rank, process in job.numbered():
            if rank is not None and not self.own_run:
                who = {"world_size": world, "host": process.host, "pid": process.pid}
                self.fact(process, "rank", {**who, "from": "nccl_log"}, process.first)
            self._process(process)
            for comm in process.all_comms:
                self._communicator(process, comm)
        for name, members in job.groups.items():
            self._group(name, members)

    def _world(self) -> list[Member]:
        return self.job.groups.get(self.job.world or "", [])

    # A process

    def _process(self, process: Process) -> None:
        last = Stamp(*process.last) if process.last else None
        self.fact(
            process,
            "nccl_process",
            {
                "host": process.host,
                "pid": process.pid,
                "devices": sorted(process.devices),
                "stage": process.stage,
                "works": process.settled is not None,
                "closing": process.closing,
                "lines": process.lines,
                "results": sorted(process.results),
                "left_out": process.left_out,
            },
            last,
        )
        if process.version is not None:
            version, cuda, at = process.version
            self.fact(process, "nccl", {"version": version, "cuda": cuda}, at)
        if process.environment:
            told = {name: value for name, (value, _) in sorted(process.environment.items())}
            at = next(iter(process.environment.values()))[1]
            self.fact(process, "environment", told, at)
        if process.network or process.interface or process.via or process.hcas:
            self._network(process)
        for notice in process.notices.values():
            self._notice(process, notice)

    def _network(self, process: Process) -> None:
        told = [name for name in process.hcas if not name.startswith("NET/")]
        listed = enumerate(told or process.hcas)
        cards = [_card(index, name, process.hcas[name]) for index, name in listed]
        network = process.network[0] if process.network else None
        nets = {via: n for via, n in process.via.items() if via.startswith("NET/")}
        direct = sum(n for via, n in nets.items() if "/GDRDMA" in via)
        gdr = bool(direct) if nets else all(on for on, _ in process.gdr.values()) or None
        if process.gdr and not nets:
            gdr = all(on for on, _ in process.gdr.values())
        kinds: dict[str, int] = {}
        for via, count in process.via.items():
            kind = "P2P" if "P2P" in via or via.startswith("direct pointer") else via.split("/")[0]
            kinds["SHM" if "shared memory" in via else kind] = count + kinds.get(kind, 0)
        at = process.network[1] if process.network else process.first
        self.fact(
            process,
            "network",
            {
                "plugin": process.plugin,
                "transport": network,
                "hcas": cards,
                "gdr": gdr,
                "gdr_hcas": {name: on for name, (on, _) in process.gdr.items()},
                "gdr_source": next((at.source for on, at in process.gdr.values() if not on), None),
                "socket_if": process.interface[0] if process.interface else None,
                "address": process.interface[1] if process.interface else None,
                "bootstrap_source": process.interface[2].source if process.interface else None,
                "sockets": process.sockets,
                "connections": kinds,
                "net": {"all": sum(nets.values()), "gdr": direct},
                "net_source": next(
                    (process.via_source[via].source for via in nets if "/GDRDMA" not in via),
                    next((process.via_source[via].source for via in nets), None),
                ),
                "net_kinds": sorted({via.split("/")[1] for via in nets}),
                "net_devices": sorted({int(n[1]) for via in nets if (n := _DEVICE.match(via))}),
                "channels": process.channels,
            },
            at,
        )

    def _notice(self, process: Process, notice: Notice) -> None:
        name = "nccl_error" if notice.role in ("primary", "secondary") else "nccl_warn"
        about = {
            "class": notice.cause,
            "role": notice.role,
            "level": notice.level,
            "place": notice.where,
            "count": notice.count,
            "peer": notice.peer,
            "device": notice.device,
            "last": notice.last.source,
        }
        value = {"text": notice.text, **about}
        self.fact(process, name, value, notice.first)
        rank = self.rank_of.get(id(process))
        if rank is not None and notice.first.time_ns is not None:
            self.rows.events.append(
                {
                    "run_id": self.rows.run_id,
                    "attempt": self.attempt,
                    "rank": rank,
                    "name": name,
                    "time_ns": notice.first.time_ns,
                    "value": float(notice.count),
                    "text": notice.text,
                    "source": notice.first.source,
                    "attributes": _json({k: v for k, v in about.items() if k != "role"}),
                }
            )

    # A communicator

    def _communicator(self, process: Process, comm: Communicator) -> None:
        state = (
            comm.end.lower() if comm.end
            else "complete" if comm.complete or comm.calls
            else "start" if comm.start
            else "seen"
        )  # fmt: skip
        value: dict[str, Any] = {
            "comm": comm.pointer,
            "hash": comm.hash,
            "group": self.group_of.get(id(comm)),
            "world": self.group_of.get(id(comm)) == self.job.world,
            "parent": self.parent_of.get(id(comm)),
            "split": comm.split,
            "rank": comm.rank,
            "nranks": comm.nranks,
            "nodes": comm.nodes,
            "bus": comm.bus,
            "device": comm.device,
            "state": state,
            "ring": comm.ring,
        }
        if comm.timings:
            value["timings_s"] = comm.timings
        self.fact(process, "communicator", value, comm.complete or comm.start or comm.seen)
        rank = self.rank_of.get(id(process))
        begin = comm.start.time_ns if comm.start else None
        done = comm.complete.time_ns if comm.complete else None
        if done is not None and begin is None and comm.timings:
            begin = done - int(comm.timings["total"] * 1e9)
        if rank is None or begin is None:
            return
        until = done if done is not None else max(begin, self._last_ns(process))
        span_id = self._span(rank, comm, "nccl.comm.init", begin, until, done is None, None)
        left = until - begin
        for phase in _PHASES:
            took = min(left, int(comm.timings.get(phase, 0.0) * 1e9))
            if took > 0:  # their order is known, their beginnings are not told
                self._span(rank, comm, f"nccl.init.{phase}", until - left, until - left + took,
                           False, span_id)  # fmt: skip
                left -= took

    def _last_ns(self, process: Process) -> int:
        return (process.last[2] if process.last else None) or 0

    def _span(
        self,
        rank: int,
        comm: Communicator,
        name: str,
        begin: int,
        end: int,
        is_open: bool,
        parent: int | None,
    ) -> int:
        self.ids += 1
        at = comm.start or comm.complete
        about: dict[str, Any] = {"comm": comm.hash or comm.pointer, "rank": comm.rank}
        about["source"] = at.source if at else None
        if parent is not None:
            about["estimate"] = True
        self.rows.spans.append(
            {
                "run_id": self.rows.run_id,
                "attempt": self.attempt,
                "rank": rank,
                "kind": "init",
                "name": name,
                "lane": f"nccl:{comm.hash or comm.pointer}",
                "clock": "host",
                "span_id": _FIRST_ID + self.ids,
                "parent_id": parent,
                "start_ns": begin,
                "duration_ns": max(0, end - begin),
                "is_open": is_open,
                "status": None if is_open else "ok",
                "group_size": comm.nranks,
                "attributes": _json(about),
            }
        )
        return _FIRST_ID + self.ids

    # The members together

    def _group(self, name: str, members: Iterable[Member]) -> None:
        newest: dict[int, Member] = {}
        for member in members:
            if member.comm.rank is not None:
                newest[member.comm.rank] = member
        ranks = {
            number: number if name == self.job.world else self.rank_of.get(id(member.process))
            for number, member in newest.items()
        }
        known = sorted(rank for rank in ranks.values() if rank is not None)
        size = max((m.comm.nranks or 0 for m in newest.values()), default=0)
        sample = next(iter(newest.values()), None)
        if len(known) == size:  # all members told of it
            value = {"id": name, "name": f"nccl {name}", "ranks": known, "description": "NCCL"}
            self.fact(None, "group", value, sample.comm.seen if sample else None)
        calls = {number: m.comm.calls for number, m in newest.items() if m.comm.calls is not None}
        for number, of in calls.items():
            process = newest[number].process
            at = Stamp(*of.newest) if of.newest else None
            last = of.last[-1] if of.last else of.first[-1] if of.first else None
            ops = {op.decode("ascii", "replace"): count for op, count in sorted(of.ops.items())}
            told = {"group": name, "rank": number, "calls": of.count, "messages": of.messages,
                    "ops": ops, "last": describe(last) if last else None}  # fmt: skip
            self.fact(process, "nccl_calls", told, at)
            self.fact(process, "last_seq", {"group": name, "enqueued": of.count}, at)
        difference = first_difference(calls)
        if difference is not None:
            parted = {
                "group": name,
                "number": difference.number,
                "not_after": difference.not_after,
                "calls": {
                    str(ranks[number] if ranks[number] is not None else number): describe(call)
                    for number, call in sorted(difference.calls.items())
                },
            }
            first = next((m for number, m in newest.items() if number in calls), None)
            at = first.comm.seen if first else None
            self.fact(None, "nccl_mismatch", parted, at)


def _card(index: int, name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    device, _, port = name.rpartition(":")
    speed = told.get("speed_gbs", told.get("topology_gbs"))
    return {
        "index": index,
        "name": device or name,
        "port": port if device else None,
        "link": told.get("link"),
        "speed_gbs": round(speed / 8, 6) if speed is not None else None,
        "source": told["source"].source,
    }


def _json(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, json.dumps(value)) for name, value in values.items() if value is not None]
