"""The table of open spans: what a rank was in the middle of is there without its help."""

from __future__ import annotations

import gc
import threading

from tests.recorder.tape import Tape
from tracekit import recorder
from tracekit.journal.format import OPEN_ROWS, Live
from tracekit.model import Collective


def test_an_open_span_is_in_the_table_until_it_ends(tape: Tape) -> None:
    with recorder.step(5), recorder.span("forward", kind="forward"):
        reduce = recorder.span_type("all_reduce", "comm")
        token = reduce.begin()
        assert [(kind, name) for kind, name, _ in tape.open_spans()] == [
            ("step", "train_step"),
            ("forward", "forward"),
            ("comm", "all_reduce"),
        ]
        reduce.end(token)
    assert tape.open_spans() == []


def test_a_row_says_start_step_parent_and_lane(tape: Tape) -> None:
    with recorder.step(5), recorder.span("forward", kind="forward"):
        token = recorder.span_type("work", lane="group:g").begin(nbytes=8)
        step, forward, work = sorted(tape.journal().open_rows().tolist(), key=lambda row: row[7])
        now = recorder.clock()
        recorder.span_type("work").end(token)
    assert step[0] <= forward[0] <= work[0] <= now
    assert work[2] >> 16 == 6
    assert work[3] == forward[7]
    lanes = tape.journal().definitions.lanes
    assert lanes[work[1] >> 32] == "group:g"
    assert lanes[forward[6]].startswith("thread:")


def test_the_row_of_a_depth_follows_what_is_open_there(tape: Tape) -> None:
    for name in ("a", "b", "b", "a"):
        with recorder.span(name):
            assert [found for _, found, _ in tape.open_spans()] == [name]
        assert tape.open_spans() == []


def test_more_open_spans_than_rows_are_recorded_and_counted(tape: Tape) -> None:
    work = recorder.span_type("work")
    tokens = [work.begin() for _ in range(OPEN_ROWS + 100)]
    held = len(tape.open_spans())
    assert held < OPEN_ROWS
    assert tape.counted(Live.OPEN_OVERFLOW) == len(tokens) - held
    for token in tokens:
        work.end(token)
        work.end(token)
    assert len(tape.spans("work")) == len(tokens)
    assert tape.open_spans() == []
    again = [work.begin() for _ in range(held)]
    assert len(tape.open_spans()) == held
    for token in again:
        work.end(token)


def test_spans_nested_deeper_than_rows_are_recorded(tape: Tape) -> None:
    def nest(depth: int) -> None:
        if depth:
            with recorder.span("deep", depth=depth):
                nest(depth - 1)

    nest(200)
    rows = tape.spans("deep")
    assert [row["attributes"]["depth"] for row in rows] == list(range(1, 201))
    ids = [row["span_id"] for row in rows]
    assert [row["parent_id"] for row in rows] == [*ids[1:], None]
    assert tape.open_spans() == []


def test_a_thread_that_died_gives_its_rows_back(tape: Tape) -> None:
    def work(number: int) -> None:
        recorder.span("left").__enter__()
        with recorder.span("done", number=number):
            pass

    for number in range(200):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()
        del thread
    gc.collect()
    assert [row["attributes"]["number"] for row in tape.spans("done")] == list(range(200))
    with recorder.span("mine"):
        assert "mine" in [name for _, name, _ in tape.open_spans()]
    assert tape.counted(Live.OPEN_OVERFLOW) == 0


def test_what_a_dead_thread_left_open_is_no_ghost_of_the_next(tape: Tape) -> None:
    def leave() -> None:
        recorder.span("left").__enter__()
        recorder.span("deeper").__enter__()

    def work() -> None:
        with recorder.span("own"):
            seen.append([name for _, name, _ in tape.open_spans()])

    seen: list[list[str]] = []
    for target in (leave, work):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        del thread
        gc.collect()
    assert seen == [["own"]]


def test_a_row_that_is_used_again_says_what_its_new_span_is(tape: Tape) -> None:
    reduce = recorder.span_type("all_reduce", "comm", Collective("all_reduce", "g", 2), "group:g")
    gather = recorder.span_type("all_gather", "comm", Collective("all_gather", "g", 2), "group:g")
    namesake = recorder.span_type("all_reduce", "comm", lane="group:g")
    seen = set()
    for step in (1, 1, 2):
        with recorder.step(step), recorder.span("backward"):
            for type_, seq, nbytes in (
                (reduce, 5, 8), (reduce, 6, 8), (reduce, 7, 16), (gather, 8, 16), (namesake, 0, 0),
                (reduce, 9, 0),
            ):  # fmt: skip
                token = type_.begin(seq, nbytes)
                *around, row = sorted(tape.journal().open_rows().tolist(), key=lambda row: row[7])
                type_.end(token)
                assert row[0] == token[3]
                assert row[1] == type_.what | type_.lane
                assert (row[2] >> 16) - 1 == step
                assert row[3] == around[-1][7]
                assert (row[4] & (1 << 48) - 1, row[5]) == (seq, nbytes)
                assert (row[4] >> 48 != 0) == (type_ is not namesake)
                seen.add(row[8])
    assert len(seen) == 1, "not one row"
    assert tape.open_spans() == []


def test_a_thread_that_records_nothing_leaves_nothing_in_a_row(tape: Tape) -> None:
    reduce = recorder.span_type("all_reduce", "comm", Collective("all_reduce", "g", 2), "group:g")

    def silent() -> None:
        reduce.end(reduce.begin(1, 4096))

    thread = threading.Thread(target=silent, name="tracekit-silent")
    thread.start()
    thread.join()
    token = reduce.begin(2, 4096)
    (row,) = tape.journal().open_rows().tolist()
    assert (row[1], row[5]) == (reduce.what | reduce.lane, 4096)
    reduce.end(token)
