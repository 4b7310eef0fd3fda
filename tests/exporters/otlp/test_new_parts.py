"""The parts of a running attempt: whole steps in their order, and nothing twice or never."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.dataset.parts import Held, batch_name, part_folder, write_file
from tracekit.dataset.schema import TABLES, cast
from tracekit.exporters._live.new_parts import NewParts
from tracekit.exporters._live.sampling import Chooser, Rule
from tracekit.testing.builder import RunBuilder

HOST = "0badcafe"


class Writer:
    """Writes parts of a training as an agent does, a rank at a time."""

    def __init__(self, folder: Path, ranks: int = 2, steps: int = 6) -> None:
        self.folder, self.ranks = folder, ranks
        built = RunBuilder(ranks)
        built.steps(steps)
        for step in range(steps):
            built.event(0, "loss", 1.0, step=step)
        self.tables = built.tables()
        self.place = 0

    def write(self, rank: int, first: int, last: int, final: bool = False) -> Path:
        self.place += 1
        name = batch_name(f"{HOST}-{100 + rank}", self.place)
        for table in ("events", "spans"):
            rows = cast(self.tables[table], TABLES[table])
            mask = pc.and_(pc.equal(rows["rank"], rank), pc.greater_equal(rows["step"], first))
            mine = rows.filter(pc.and_(mask, pc.less_equal(rows["step"], last)))
            held = [Held(0, rank, f"rank-{rank}", final={"open": 0} if final else None)]
            path = part_folder(self.folder, table, 0, rank) / name
            write_file(path, table, [mine], held if table == "spans" else ())
        return path

    def reader(self) -> NewParts:
        return NewParts(self.folder, 0, HOST, self.ranks)


def taken(parts: NewParts, through: int | None) -> list[tuple[int, list[int]]]:
    """Steps with their ranks."""
    parts.look()
    return [
        (number, sorted(set(rows["rank"].to_pylist()))) for number, rows, _ in parts.steps(through)
    ]


def test_a_step_is_complete_when_all_ranks_have_ended_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    parts = writer.reader()
    writer.write(0, 0, 3)
    parts.look()
    assert (parts.complete, parts.newest) == (-1, 3)  # of rank 1 nothing is known
    writer.write(1, 0, 1)
    parts.look()
    assert parts.complete == 1
    assert taken(parts, parts.complete) == [(0, [0, 1]), (1, [0, 1])]
    writer.write(1, 2, 2, final=True)  # it is gone: nobody waits for it any more
    parts.look()
    assert parts.complete == 3
    assert taken(parts, None) == [(2, [0, 1]), (3, [0])]
    assert taken(parts, None) == []


def test_what_comes_after_its_step_was_taken_is_late_and_comes_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    parts = writer.reader()
    writer.write(0, 0, 3)
    assert [number for number, _ in taken(parts, 2)] == [0, 1, 2]
    writer.write(1, 1, 4)
    parts.look()
    late = [(number, sorted(set(rows["rank"].to_pylist()))) for number, rows, _ in parts.late()]
    assert late == [(1, [1]), (2, [1])]
    assert list(parts.late()) == []
    assert taken(parts, None) == [(3, [0, 1]), (4, [1])]


def test_events_come_with_their_step(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(0, 0, 2)
    parts = writer.reader()
    parts.look()
    found = {number: events["name"].to_pylist() for number, _, events in parts.steps(None)}
    assert found == {0: ["loss"], 1: ["loss"], 2: ["loss"]}


def test_tallies_count_what_steps_would_have_given(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for rank in range(2):
        writer.write(rank, 0, 5)
    one, other = writer.reader(), writer.reader()
    one.look()
    other.look()
    next(iter(one.steps(0)))
    next(iter(other.steps(0)))

    def longest(rows: pa.Table) -> int:
        return int(pc.max(rows.filter(pc.equal(rows["kind"], "step"))["duration_ns"]).as_py())

    whole: list[tuple[int, int, int, set[str]]] = [
        (number, len(rows), longest(rows), set()) for number, rows, _ in one.steps(None)
    ]
    assert list(other.tallies()) == whole
    assert list(other.tallies()) == []


def test_a_part_that_cannot_be_read_is_named_and_the_others_are_taken(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    bad = writer.write(0, 0, 2)
    bad.write_bytes(bad.read_bytes()[:100])
    writer.write(1, 0, 2)
    parts = writer.reader()
    assert taken(parts, None) == [(0, [1]), (1, [1]), (2, [1])]
    (reason,) = parts.unread
    assert str(bad) in reason


def test_parts_of_other_hosts_are_theirs(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(0, 0, 2)
    other = NewParts(tmp_path, 0, "12345678", 2)
    assert taken(other, None) == []


def test_a_step_that_takes_twice_as_long_is_slow_and_only_it() -> None:
    chooser = Chooser(Rule(first=0, every=0, slow=2.0))
    why = [chooser.reason(step, 250 if step == 15 else 100, set()) for step in range(20)]
    assert [step for step, reason in enumerate(why) if reason] == [15]
    assert (chooser.known(15), chooser.known(14)) == ("slow", None)


def test_steps_around_a_checkpoint_are_chosen() -> None:
    chooser = Chooser(Rule(first=0, every=0, slow=0))
    kinds = [{"checkpoint"} if step == 3 else set() for step in range(6)]
    why = [chooser.reason(step, 1, kinds[step]) for step in range(6)]
    assert why == [None, None, None, "checkpoint", "checkpoint", None]
