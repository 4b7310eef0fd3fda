"""Runs made to order: a few readable lines become the tables of a traced training.

    run = RunBuilder(world_size=4)
    for _ in range(40):
        run.step(forward={2: 18})      # rank 2 needs 18 ms, the others the usual 10

Times follow from causes: a rank that is late makes the others wait as DDP does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tracekit.dataset.engine import DuckDB
from tracekit.dataset.schema import EVENTS, FACTS, SPANS
from tracekit.model import group_id

__all__ = ["Amount", "RunBuilder"]

Amount = float | Mapping[int, float]
"""Milliseconds of every rank, or of some of them; the others need the usual time."""

_MS = 1_000_000
_EPOCH = 1_700_000_000_000_000_000
_THREAD = "thread:MainThread"


class RunBuilder:
    """Builds a DDP training span by span; the clock of each rank only runs forward.

    ``jitter`` varies every phase by that share, ``skew_ms`` delays ranks from the start. With
    ``batchnorm`` rank 0 broadcasts buffers in each forward, through a binomial tree as gloo does.
    """

    def __init__(
        self,
        world_size: int = 4,
        *,
        data: float = 2.0,
        forward: float = 10.0,
        backward: float = 20.0,
        optimizer: float = 3.0,
        transfer: float = 1.0,
        buckets: int = 0,
        batchnorm: bool = False,
        jitter: float = 0.0,
        seed: int = 1,
        run_id: str = "run",
        attempt: int = 0,
        hosts: Sequence[str] = ("node-0",),
        domains: Sequence[str] | None = None,
    ) -> None:
        self.world_size = world_size
        self.usual = {"data": data, "forward": forward, "backward": backward}
        self.usual["optimizer"] = optimizer
        self.transfer = transfer
        self.buckets = buckets
        self.batchnorm = batchnorm
        self.jitter = jitter
        self.random = random.Random(seed)
        self.run_id, self.attempt = run_id, attempt
        self.group = group_id(range(world_size))
        self.now = [_EPOCH] * world_size
        self.next_step = 0
        self.sequences: dict[str, int] = {}
        self.ids = [0] * world_size
        self.spans: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.facts: list[dict[str, Any]] = []
        per_host = -(-world_size // len(hosts))
        self.hosts = [hosts[rank // per_host] for rank in range(world_size)]
        for rank, host in enumerate(self.hosts):
            domain = (domains or [f"{h}-boot:0" for h in hosts])[hosts.index(host)]
            described = {"world_size": world_size, "local_rank": rank % per_host, "host": host}
            self.fact("rank", {**described, "pid": 1000 + rank, "attempt": attempt}, rank)
            self.fact("clock", {"domain": domain, "anchors": 3}, rank)
        self.fact("group", {"id": self.group, "name": "0", "ranks": list(range(world_size))}, 0)

    # Single records

    def span(
        self,
        rank: int,
        kind: str,
        start_ns: int,
        end_ns: int,
        name: str | None = None,
        step: int | None = None,
        lane: str = _THREAD,
        parent: int | None = None,
        is_open: bool = False,
        **columns: Any,
    ) -> int:
        """Record one span as it is; returns its id."""
        self.ids[rank] += 1
        self.spans.append(
            {
                "run_id": self.run_id,
                "attempt": self.attempt,
                "rank": rank,
                "step": step,
                "kind": kind,
                "name": name or kind,
                "lane": lane,
                "clock": "host",
                "span_id": self.ids[rank],
                "parent_id": parent,
                "start_ns": start_ns,
                "duration_ns": end_ns - start_ns,
                "is_open": is_open,
                "status": "ok",
                **columns,
            }
        )
        return self.ids[rank]

    def collective(
        self,
        rank: int,
        op: str,
        seq: int,
        start_ns: int,
        end_ns: int,
        *,
        group: str | None = None,
        group_size: int | None = None,
        nbytes: int = 1 << 20,
        name: str | None = None,
        **columns: Any,
    ) -> int:
        """Record one rank's part of a collective; blocking unless a ``lane`` says otherwise."""
        return self.span(
            rank,
            "comm",
            start_ns,
            end_ns,
            name or op,
            collective_op=op,
            collective_group=group or self.group,
            collective_seq=seq,
            collective_bytes=nbytes,
            collective_dtype="float32",
            group_size=group_size or self.world_size,
            **columns,
        )

    def event(self, rank: int, name: str, value: float | None = None, **columns: Any) -> None:
        """Record an event at the rank's present time."""
        row = {"run_id": self.run_id, "attempt": self.attempt, "rank": rank, "name": name}
        self.events.append({**row, "time_ns": self.now[rank], "value": value, **columns})

    def fact(self, name: str, value: Any, rank: int | None = None, **columns: Any) -> None:
        """Record a fact; the value becomes JSON."""
        row = {"run_id": self.run_id, "attempt": self.attempt, "rank": rank, "name": name}
        if rank is not None:
            row["host"] = self.hosts[rank]
        self.facts.append({**row, "value": json.dumps(value), **columns})

    # Training

    def step(
        self,
        *,
        data: Amount | None = None,
        forward: Amount | None = None,
        backward: Amount | None = None,
        optimizer: Amount | None = None,
        checkpoint: Amount = 0.0,
        gc: Amount = 0.0,
        other: Amount = 0.0,
    ) -> int:
        """Train one step; returns its number. Checkpoint and gc come before the data wait."""
        given = {"data": data, "forward": forward, "backward": backward, "optimizer": optimizer}
        step, begins = self._begin_step()
        ranks = range(self.world_size)
        for rank in ranks:
            self._plain(rank, step, "checkpoint", self._amount(checkpoint, rank, 0.0), "torch.save")
            self._plain(rank, step, "gc", self._amount(gc, rank, 0.0))
            self.now[rank] += self._amount(other, rank, 0.0)
            self._plain(rank, step, "data", self._usual(given["data"], rank, "data"), "data_wait")
        self._forward(step, [self._usual(given["forward"], rank, "forward") for rank in ranks])
        work = [self._usual(given["backward"], rank, "backward") for rank in ranks]
        if self.buckets:
            self._backward_in_buckets(step, work)
        else:
            self._backward(step, work)
        for rank in ranks:
            amount = self._usual(given["optimizer"], rank, "optimizer")
            self._plain(rank, step, "optimizer", amount, "optimizer_step")
            self.span(rank, "step", begins[rank], self.now[rank], "train_step", step)
        return step

    def steps(self, count: int, **phases: Any) -> None:
        """Train several equal steps."""
        for _ in range(count):
            self.step(**phases)

    def untraced_step(self, ms: float) -> int:
        """A step in which recording pauses, to measure what it costs; returns its number."""
        step, begins = self._begin_step()
        for rank in range(self.world_size):
            self.now[rank] = begins[rank] + round(ms * _MS)
            self.span(rank, "step", begins[rank], self.now[rank], "untraced_step", step)
        return step

    def _begin_step(self) -> tuple[int, list[int]]:
        step = self.next_step
        self.next_step += 1
        return step, list(self.now)

    def _amount(self, amount: Amount, rank: int, usual: float) -> int:
        ms = amount.get(rank, usual) if isinstance(amount, Mapping) else amount
        return round(ms * _MS)

    def _usual(self, amount: Amount | None, rank: int, phase: str) -> int:
        usual = self.usual[phase]
        ns = self._amount(usual if amount is None else amount, rank, usual)
        return round(ns * (1 + self.jitter * self.random.uniform(-1, 1))) if self.jitter else ns

    def _plain(self, rank: int, step: int, kind: str, ns: int, name: str | None = None) -> None:
        if ns > 0:
            start = self.now[rank]
            self.now[rank] += ns
            self.span(rank, kind, start, self.now[rank], name, step)

    def _sequence(self, op: str) -> int:
        self.sequences[op] = self.sequences.get(op, 0) + 1
        return self.sequences[op]

    def _forward(self, step: int, work: list[int]) -> None:
        starts = list(self.now)
        blocks: list[tuple[int, int]] = []
        if self.batchnorm:
            blocks = self._relayed(starts)
            self.now = [end for _, end in blocks]
        seq = self._sequence("broadcast") if blocks else 0
        for rank, ns in enumerate(work):
            self.now[rank] += ns
            parent = self.span(rank, "forward", starts[rank], self.now[rank], "forward", step)
            if blocks:
                start, end = blocks[rank]
                self.collective(
                    rank, "broadcast", seq, start, end, peer_rank=0, step=step, parent=parent
                )

    def _relayed(self, arrivals: list[int]) -> list[tuple[int, int]]:
        """When each rank has what rank 0 sends down a binomial tree, and until when it waits."""
        hop = round(self.transfer * _MS / 4)
        has = [arrivals[0]]
        for rank in range(1, self.world_size):
            parent = rank & (rank - 1)
            has.append(max(arrivals[rank], has[parent]) + hop)
        return [
            (arrival, max(arrival + hop, got)) for arrival, got in zip(arrivals, has, strict=True)
        ]

    def _backward(self, step: int, work: list[int]) -> None:
        starts = list(self.now)
        ready = [start + ns for start, ns in zip(starts, work, strict=True)]
        end = max(ready) + round(self.transfer * _MS)
        seq = self._sequence("all_reduce")
        for rank in range(self.world_size):
            parent = self.span(rank, "backward", starts[rank], end, "backward", step)
            self.collective(rank, "all_reduce", seq, ready[rank], end, step=step, parent=parent)
            self.now[rank] = end

    def _backward_in_buckets(self, step: int, work: list[int]) -> None:
        starts = list(self.now)
        each = round(self.transfer * _MS / self.buckets)
        end = 0
        spans = []
        for bucket in range(1, self.buckets + 1):
            ready = [
                start + ns * bucket // self.buckets for start, ns in zip(starts, work, strict=True)
            ]
            end = max(*ready, end) + each
            spans.append((self._sequence("all_reduce"), ready, end))
        for rank in range(self.world_size):
            parent = self.span(rank, "backward", starts[rank], end, "backward", step)
            for seq, ready, ended in spans:
                lane = f"group:{self.group}"
                self.collective(
                    rank, "all_reduce", seq, ready[rank], ended, step=step, parent=parent, lane=lane
                )
            self.now[rank] = end

    # Ends

    def hang(
        self,
        rank: int,
        *,
        kind: str = "forward",
        seconds: float = 30.0,
        stack: Sequence[str] = ("/job/train.py:42 forward",),
        second_stack: Sequence[str] | None = None,
        state: str = "S",
        heartbeat_stops: bool = False,
        looks: bool = True,
    ) -> None:
        """A rank stays in a phase for ever; the others wait for it in the all-reduce."""
        step, begins = self._begin_step()
        end = max(self.now) + round(seconds * 1e9)
        seq = self._sequence("all_reduce")
        for other in range(self.world_size):
            stuck = other == rank
            self.span(other, "step", begins[other], end, "train_step", step, is_open=True)
            self._plain(other, step, "data", self._usual(None, other, "data"), "data_wait")
            if stuck:
                self.span(other, kind, self.now[other], end, kind, step, is_open=True)
            else:
                self._plain(other, step, "forward", self._usual(None, other, "forward"))
                start = self.now[other]
                parent = self.span(other, "backward", start, end, "backward", step, is_open=True)
                ready = start + self._usual(None, other, "backward")
                self.collective(
                    other, "all_reduce", seq, ready, end, step=step, parent=parent, is_open=True
                )
            last = {"group": self.group, "enqueued": seq - stuck, "completed": seq - 1}
            self.fact("last_seq", last, other)
            stopped = stuck and (heartbeat_stops or state == "T")
            self.fact("heartbeat", self.now[other] if stopped else end, other)
            self.fact("end_state", {"state": "running"}, other)
            frames = stack if stuck else ["/site-packages/torch/autograd/graph.py:9 backward"]
            if looks and not (stuck and state == "T"):
                for look, shown in enumerate((frames, second_stack if stuck else None)):
                    self._stack(other, shown or frames, state if stuck else "S", end, look)
            elif looks:
                self._stack(other, [], state, end, 0)
        self.now = [end] * self.world_size

    def _stack(self, rank: int, frames: Sequence[str], state: str, end: int, look: int) -> None:
        time_ns = end - (2 - look) * 5_000_000_000
        threads = [{"name": "MainThread", "current": True, "frames": list(frames)}]
        self.fact(
            "stack", {"time_ns": time_ns, "threads": threads if frames else [], "state": state},
            rank, time_ns=time_ns,
        )  # fmt: skip

    def die(
        self,
        rank: int,
        *,
        kind: str = "forward",
        after_ms: float = 5.0,
        end_state: Mapping[str, Any] | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        """A rank ends in the middle of a phase; the others get to the all-reduce and end after."""
        step, begins = self._begin_step()
        seq = self._sequence("all_reduce")
        death = self.now[rank] + round((self.usual["data"] + after_ms) * _MS)
        for other in range(self.world_size):
            dead = other == rank
            end = death if dead else death + 1_000_000_000
            self.span(other, "step", begins[other], end, "train_step", step, is_open=True)
            self._plain(other, step, "data", self._usual(None, other, "data"), "data_wait")
            start = self.now[other]
            if dead:
                self.span(other, kind, start, end, kind, step, is_open=True)
            else:
                self.collective(
                    other, "all_reduce", seq, start + 30 * _MS, end, step=step, is_open=True
                )
            state = end_state if dead else others
            self.fact(
                "end_state", state or {"state": "vanished" if dead else "exit", "code": 1}, other,
                time_ns=end,
            )  # fmt: skip
            last = {"group": self.group, "enqueued": seq - dead, "completed": seq - 1}
            self.fact("last_seq", last, other)
            self.fact("heartbeat", end, other)
            self.now[other] = end

    def end_cleanly(self) -> None:
        """Every rank stopped as it should."""
        for rank in range(self.world_size):
            self.fact("end_state", {"state": "clean"}, rank, time_ns=self.now[rank])

    # Results

    def tables(self) -> dict[str, pa.Table]:
        """The tables of the run: spans, events and facts."""
        return {
            "spans": pa.Table.from_pylist(self.spans, SPANS),
            "events": pa.Table.from_pylist(self.events, EVENTS),
            "facts": pa.Table.from_pylist(self.facts, FACTS),
        }

    def engine(self) -> DuckDB:
        """An engine that has the tables."""
        return engine_of(self.tables())

    def without(self, *ranks: int) -> dict[str, pa.Table]:
        """The tables as if the records of these ranks were lost."""
        kept = {name: table.to_pylist() for name, table in self.tables().items()}
        return {
            name: pa.Table.from_pylist(
                [row for row in rows if row["rank"] not in ranks],
                {"spans": SPANS, "events": EVENTS, "facts": FACTS}[name],
            )
            for name, rows in kept.items()
        }


def engine_of(tables: Mapping[str, pa.Table]) -> DuckDB:
    """An engine that has these tables."""
    engine = DuckDB()
    for name, table in tables.items():
        engine.register(name, table)
    return engine
