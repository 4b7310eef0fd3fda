"""Random runs for property tests, and the tables that spans make."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import strategies as st

from tests.analysis.oracle import Span
from tracekit.dataset.schema import EVENTS, FACTS, SPANS

EPOCH = 1_700_000_000_000_000_000
LENGTH, STEPS, RANKS = 16, 3, 2
GROUP = "aaaabbbbcccc"
PHASES = ("forward", "backward", "optimizer", "data", "checkpoint", "eval", "compile", "gc", "user")


@st.composite
def runs(draw: st.DrawFn) -> list[Span]:
    """Steps that tile, phases and collectives anywhere in them, reaching out of them or not."""
    spans: list[Span] = []
    for rank in range(RANKS):
        spans += draw(rank_of_run(rank))
    for seq in range(draw(st.integers(0, 5))):
        step = draw(st.integers(0, STEPS - 1))
        op = draw(st.sampled_from(["all_reduce", "broadcast", "reduce"]))
        lane = draw(st.sampled_from(["thread:main", "thread:main", f"group:{GROUP}"]))
        for rank in range(RANKS):
            if draw(st.integers(0, 9)) == 0:
                continue
            parents = [
                span
                for span in spans
                if span.rank == rank and span.step == step and span.kind == "backward"
            ]
            parent = draw(st.sampled_from(parents)) if parents and lane[0] == "g" else None
            low = step * LENGTH if parent is None else parent.start
            high = (step + 1) * LENGTH - 1 if parent is None else max(parent.start, parent.end - 1)
            start = draw(st.integers(low, high))
            end = start + draw(st.integers(0, LENGTH))
            root = 0 if op != "all_reduce" else None
            spans.append(
                Span(
                    rank, step, "comm", start, end, lane, 1000 + seq,
                    parent.id if parent else None, op, seq, root,
                )
            )  # fmt: skip
    return spans


@st.composite
def rank_of_run(draw: st.DrawFn, rank: int) -> list[Span]:
    spans = [
        Span(rank, step, "step", step * LENGTH, (step + 1) * LENGTH, id=step)
        for step in range(STEPS)
    ]
    for number in range(draw(st.integers(0, 8))):
        step = draw(st.integers(0, STEPS - 1))
        kind = draw(st.sampled_from(PHASES))
        start = draw(st.integers(step * LENGTH, (step + 1) * LENGTH - 1))
        end = start + draw(st.integers(0, LENGTH))
        if kind == "backward":
            end = min(end, (step + 1) * LENGTH)
        lane = draw(st.sampled_from(["thread:main", "thread:main", "thread:other"]))
        label = None if kind == "eval" and number % 3 == 0 else step
        spans.append(Span(rank, label, kind, start, end, lane, 10 + number))
    return spans


def tables_of(spans: Sequence[Span], ranks: int = RANKS) -> dict[str, pa.Table]:
    """The tables of a run of these spans."""
    rows = [
        {
            "run_id": "run",
            "attempt": 0,
            "rank": span.rank,
            "step": span.step,
            "kind": span.kind,
            "name": span.kind,
            "lane": span.lane,
            "clock": "host",
            "span_id": span.id,
            "parent_id": span.parent,
            "start_ns": EPOCH + span.start,
            "duration_ns": span.end - span.start,
            "is_open": False,
            "collective_op": span.op,
            "collective_group": GROUP if span.op else None,
            "collective_seq": span.seq if span.op else None,
            "group_size": ranks if span.op else None,
            "peer_rank": span.root,
        }
        for span in spans
    ]
    return {
        "spans": pa.Table.from_pylist(rows, SPANS),
        "events": EVENTS.empty_table(),
        "facts": FACTS.empty_table(),
    }
