"""However a segment is filled and however often it is read meanwhile: each record comes once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal.handmade import (
    CHUNK,
    CHUNK_HEAD,
    HEADER,
    SLOTS,
    VALUES,
    Journal,
    Words,
    span,
    values,
)
from tracekit.journal.records import read_records
from tracekit.journal.slots import Run, merge

CHUNKS = 3


@dataclass
class Filling:
    """A segment that three threads fill, each its own chunk, while somebody reads."""

    made: Journal = field(default_factory=lambda: Journal(chunks=CHUNKS))
    next_id: int = 1
    used: list[int] = field(default_factory=lambda: [1] * CHUNKS)
    late: dict[int, list[tuple[int, tuple[int, Words]]]] = field(default_factory=dict)
    wanted: dict[int, int] = field(default_factory=dict)
    """How many continuations each committed record has."""
    covered: list[Run] = field(default_factory=list)
    seen: Counter[int] = field(default_factory=Counter)
    attributes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for chunk in range(CHUNKS):
            self.put(chunk, 0, (CHUNK_HEAD, (1, 0, 1 << 32, 0, 0, 0, 0)))

    def put(self, chunk: int, slot: int, record: tuple[int, Words]) -> None:
        self.made.write(0, HEADER + chunk * CHUNK + slot * 64, record)

    def slot(self, chunk: int) -> int | None:
        if self.used[chunk] == SLOTS:
            return None
        self.used[chunk] += 1
        return self.used[chunk] - 1

    def record(self, chunk: int, continuations: int, between: int, late: bool) -> None:
        """Record a span; between its continuations and itself others may come."""
        id_, self.next_id = self.next_id, self.next_id + 1
        for _ in range(continuations):
            slot = self.slot(chunk)
            if slot is None:
                return  # orphans
            self.put(chunk, slot, values(id_, 1))
        for _ in range(between):
            self.record(chunk, 0, 0, False)
        slot = self.slot(chunk)
        if slot is None:
            return
        if late:
            self.late.setdefault(chunk, []).append((slot, span(id_)))
            self.wanted[-id_] = continuations
        else:
            self.put(chunk, slot, span(id_))
            self.wanted[id_] = continuations

    def commit(self, chunk: int) -> None:
        """A record that was in the making is complete now."""
        if self.late.get(chunk):
            slot, record = self.late[chunk].pop(0)
            self.put(chunk, slot, record)
            id_ = record[1][4]
            self.wanted[id_] = self.wanted.pop(-id_)

    def read(self, finished: bool) -> None:
        words = np.frombuffer(bytes(self.made.segment()), "<i8").reshape(-1, 8)
        found = read_records(words, 0, SLOTS, base=0, finished=finished, covered=self.covered)
        self.covered = merge([*self.covered, *found.taken])
        owners = Counter(found.owners.tolist())
        for place, type_ in enumerate(found.types.tolist()):
            if type_ not in (CHUNK_HEAD, VALUES):
                id_ = int(found.rows[place, 4])
                self.seen[id_] += 1
                self.attributes[id_] = owners[place] - 1


CHUNK_NUMBERS = st.integers(0, CHUNKS - 1)
STEPS = st.one_of(
    st.tuples(
        st.just("record"), CHUNK_NUMBERS, st.integers(0, 3), st.integers(0, 2), st.booleans()
    ),
    st.tuples(st.just("commit"), CHUNK_NUMBERS),
    st.tuples(st.just("read")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_every_committed_record_is_read_once_with_its_continuations(
    steps: list[tuple[str, int, int, int, bool] | tuple[str, int] | tuple[str]],
) -> None:
    filling = Filling()
    for step in steps:
        if step[0] == "record":
            filling.record(*step[1:])
        elif step[0] == "commit":
            filling.commit(*step[1:])
        else:
            filling.read(finished=False)
    filling.read(finished=True)
    filling.read(finished=True)
    wanted = {id_: count for id_, count in filling.wanted.items() if id_ > 0}
    assert filling.seen == Counter(list(wanted))
    assert filling.attributes == wanted
