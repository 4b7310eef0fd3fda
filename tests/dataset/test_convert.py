"""Each record comes into one file, however often and by whomever a journal is converted."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.dataset.ranks import (
    collectives,
    journal,
    journal_folder,
    killed,
    recording,
    spans,
)
from tests.journal.handmade import START, UNIX, Journal, span, what
from tracekit import recorder
from tracekit.dataset import Run, convert, drop_covered_segments, finalize, open_run
from tracekit.errors import UsageError
from tracekit.journal.format import Live

SEGMENT_RECORDS = 3 * 255
"""Records in a segment of four chunks, one of which is its header's place."""
SMALL = 64 << 10


def ids(run: Run) -> list[int]:
    """The ids of all spans, each as often as it is there."""
    found: list[int] = run.table("spans", ["span_id"])["span_id"].to_pylist()
    return sorted(found)


def opened(run_dir: Path) -> list[int]:
    with open_run(run_dir) as run:
        return ids(run)


def rows_in_files(run_dir: Path, table: str = "spans") -> int:
    return sum(pq.read_metadata(path).num_rows for path in (run_dir / table).rglob("*.parquet"))


def test_a_second_conversion_writes_only_what_is_new(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True):
        spans(10)
        reader = journal(tmp_path)
        first = convert(reader, tmp_path)
        again = convert(reader, tmp_path)
        spans(5)
        second = convert(journal(tmp_path), tmp_path)
        assert opened(tmp_path) == list(range(1, 16))
    assert (first.spans, again.spans, again.files, second.spans) == (10, 0, [], 5)


def test_a_part_says_which_slots_it_holds(tmp_path: Path) -> None:
    with recording(tmp_path, rank=3, world_size=4):
        spans(10)
        done = convert(journal(tmp_path), tmp_path)
    (path,) = done.files
    assert path.parent == tmp_path / "spans" / "attempt=0" / "rank=00003"
    covers = json.loads(pq.read_metadata(path).metadata[b"tracekit.covers"])
    assert covers["stem"] == "rank-00003.00c0ffee-100"
    assert covers["slots"] == [[0, 256 + 1 + 10]]
    assert (covers["rank"], covers["world_size"]) == (3, 4)


def test_little_is_left_for_later(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True):
        convert(journal(tmp_path), tmp_path)  # facts, if there are any
        spans(10)
        assert convert(journal(tmp_path), tmp_path, least_records=1000).files == []


def test_events_and_facts_have_files_of_their_own(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True):
        recorder.event("loss", 0.5)
        recorder.fact("seed", 17)
        done = convert(journal(tmp_path), tmp_path)
        recorder.fact("seed", 18)
        later = convert(journal(tmp_path), tmp_path)
        with open_run(tmp_path) as run:
            facts = run.table("facts").to_pylist()
            assert len(run.table("events")) == 1
    assert (done.spans, done.events, done.facts, later.facts) == (0, 1, 1, 1)
    assert [fact["value"] for fact in facts if fact["name"] == "seed"] == ["17", "18"]


def test_a_provisional_journal_is_left_alone(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True, provisional=True):
        spans(10)
        assert convert(journal(tmp_path), tmp_path).files == []
        assert len(opened(tmp_path)) == 10


def test_an_unfinished_record_is_taken_once_it_is_finished(tmp_path: Path) -> None:
    made = Journal().alive()
    made.chunk([span(1), None, span(3)])
    head = made.save(journal_folder(tmp_path))
    assert convert(journal(tmp_path), tmp_path).spans == 1
    made.write(0, 1024 + 2 * 64, span(2))
    made.save(head.parent)
    assert convert(journal(tmp_path), tmp_path).spans == 2
    assert opened(tmp_path) == [1, 2, 3]


def test_what_a_killed_converter_left_behind_is_cleaned_up(tmp_path: Path) -> None:
    with recording(tmp_path):
        spans(3)
        recorder.event("loss", 0.5)
    before = killed(tmp_path, tmp_path.with_name("before"))
    done = convert(journal(tmp_path), tmp_path)
    of_spans = next(path for path in done.files if "spans" in path.parts)
    half = of_spans.with_name(f".{of_spans.name}.77-aa.tmp")
    of_spans.rename(half)  # killed between the file of events and that of spans
    with open_run(tmp_path) as run:
        assert (ids(run), len(run.table("events"))) == ([1, 2, 3], 1)
    convert(journal(tmp_path), tmp_path)
    assert not half.exists()
    assert len(list((tmp_path / "events").rglob("*.parquet"))) == 1
    with open_run(tmp_path) as run, open_run(before) as wanted:
        assert (ids(run), len(run.table("events"))) == ([1, 2, 3], 1)
        assert ids(wanted) == [1, 2, 3]


def test_open_spans_of_a_dead_rank_become_rows(tmp_path: Path) -> None:
    live = tmp_path / "live"
    with recording(live, rank=1, world_size=2) as made:
        made.begin_step(5)
        with recorder.span("outer"), recorder.span("inner"):
            token = recorder.span_type("pending", "comm").begin()
            dead = killed(live, tmp_path / "dead")
            recorder.span_type("pending", "comm").end(token)
    done = finalize(journal(dead), dead)
    assert (done.final, done.spans) == (True, 4)
    assert list(journal_folder(dead).iterdir()) == []
    with open_run(dead) as run:
        rows = {row["name"]: row for row in run.table("spans").to_pylist()}
        assert run.coverage.open_spans == 4
    assert {row["is_open"] for row in rows.values()} == {True}
    step, outer, inner, pending = (
        rows[name] for name in ("train_step", "outer", "inner", "pending")
    )
    assert [row["step"] for row in rows.values()] == [5] * 4
    assert (outer["parent_id"], inner["parent_id"]) == (step["span_id"], outer["span_id"])
    assert pending["parent_id"] == inner["span_id"]
    assert all(row["status"] is None and row["duration_ns"] >= 0 for row in rows.values())
    assert {row["lane"] for row in rows.values()} == {"thread:MainThread"}


def test_open_spans_last_until_the_process_ended(tmp_path: Path) -> None:
    made = Journal()
    made.open_rows = {0: (START, what(1), 0, 0, 0, 0, 1, 7)}
    made.live[0] = START + 100  # the last heartbeat
    made.save(journal_folder(tmp_path))
    finalize(journal(tmp_path), tmp_path, {"state": "signal", "time_ns": UNIX + 5000})
    with open_run(tmp_path) as run:
        (row,) = run.table("spans").to_pylist()
    assert (row["start_ns"], row["duration_ns"]) == (UNIX, 5000)


def test_a_span_that_was_closed_just_before_the_end_is_not_open(tmp_path: Path) -> None:
    made = Journal()
    made.chunk([span(1), span(7)])
    made.open_rows = {400: (START, what(1), 0, 0, 0, 0, 0, 7), 401: (START, 0, 0, 0, 0, 0, 0, 8)}
    made.save(journal_folder(tmp_path))
    assert convert(journal(tmp_path), tmp_path).spans == 2  # its record is in a file already
    with open_run(tmp_path) as run:
        assert ids(run) == [1, 7, 8]
    finalize(journal(tmp_path), tmp_path)
    assert opened(tmp_path) == [1, 7, 8]


def test_finalize_refuses_a_rank_that_still_records(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True), pytest.raises(UsageError, match="still records"):
        finalize(journal(tmp_path), tmp_path)


def test_after_finalize_identity_and_end_state_lie_beside(tmp_path: Path) -> None:
    with recording(tmp_path, rank=2, world_size=4):
        spans(1)
    finalize(journal(tmp_path), tmp_path)
    ranks = tmp_path / "attempt-000" / "ranks"
    identity = json.loads((ranks / "rank-00002.00c0ffee-100.json").read_text())
    end = json.loads((ranks / "rank-00002.00c0ffee-100.end.json").read_text())
    assert (identity["rank"], identity["world_size"]) == (2, 4)
    assert (end["state"], end["rank"]) == ("clean", 2)


@pytest.mark.parametrize("before", ["identity", "second segment"])
def test_finalize_can_be_killed_and_repeated(
    tmp_path: Path, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Journal()
    made.chunk([span(1), span(2)])
    made.chunk([span(3)], number=1)
    made.open_rows = {0: (START, what(1), 0, 0, 0, 0, 1, 9)}
    made.save(journal_folder(tmp_path))
    unlink = Path.unlink

    def killed_at(path: Path, *_: Any, **__: Any) -> None:
        if before == "identity" or path.name.endswith("000001.tkj"):
            raise KeyboardInterrupt
        unlink(path, missing_ok=True)

    with monkeypatch.context() as patched:
        if before == "identity":
            patched.setattr("tracekit.dataset.conversion.write_json", killed_at)
        else:
            patched.setattr(Path, "unlink", killed_at)
        with pytest.raises(KeyboardInterrupt):
            finalize(journal(tmp_path), tmp_path)
    assert opened(tmp_path) == [1, 2, 3, 9]
    finalize(journal(tmp_path), tmp_path)
    assert opened(tmp_path) == [1, 2, 3, 9]
    assert list(journal_folder(tmp_path).iterdir()) == []


def test_covered_segments_that_nobody_writes_are_dropped(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True, segment_bytes=SMALL):
        spans(3 * SEGMENT_RECORDS + 10)
        reader = journal(tmp_path)
        assert drop_covered_segments(reader, tmp_path) == []
        convert(reader, tmp_path)
        number = len(reader.segments)
        while reader.live(Live.RETIRED) < 2:  # the writer's thread says so after a beat
            pass
        dropped = drop_covered_segments(reader, tmp_path)
        assert len(dropped) == 2
        assert not any(path.exists() for path in dropped)
        assert len(reader.segments) == number - 2
        spans(10)
        assert opened(tmp_path) == list(range(1, 3 * SEGMENT_RECORDS + 21))


def test_a_journal_beyond_its_quota_tells_how_much_is_lost(tmp_path: Path) -> None:
    with recording(tmp_path, segment_bytes=SMALL, quota_bytes=4 * SMALL):
        spans(8 * SEGMENT_RECORDS)
    with open_run(tmp_path) as run:
        kept = len(run.table("spans"))
        assert kept < 8 * SEGMENT_RECORDS
        assert run.coverage.dropped_spans == 8 * SEGMENT_RECORDS - kept
        facts = {row["name"]: row["value"] for row in run.table("facts").to_pylist()}
    assert json.loads(facts["dropped"])["reason"] == "quota"


def test_what_was_converted_before_it_was_evicted_is_not_lost(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True, segment_bytes=SMALL, quota_bytes=4 * SMALL):
        for _ in range(8):
            spans(SEGMENT_RECORDS)
            convert(journal(tmp_path), tmp_path)
        with open_run(tmp_path) as run:
            assert len(ids(run)) == 8 * SEGMENT_RECORDS
            assert run.coverage.dropped_spans == 0


def test_collectives_are_counted_in_the_footer(tmp_path: Path) -> None:
    with recording(tmp_path):
        spans(2)
        collectives(3)
    (path, *_) = [p for p in finalize(journal(tmp_path), tmp_path).files if "spans" in p.parts]
    covers = json.loads(pq.read_metadata(path).metadata[b"tracekit.covers"])
    assert (covers["spans"], covers["collectives"]) == (5, 3)
    assert covers["final"] == {"open": 0, "dropped": 0, "torn": 0}


def _convert_again_and_again(run_dir: Path, stop: Any) -> None:
    while not stop.is_set():
        convert(journal(run_dir), run_dir)


@pytest.mark.slow
def test_two_converters_at_once_make_nothing_double(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True, segment_bytes=SMALL):
        spans(10)
        rounds = 0
        with two_converters(tmp_path) as alive:
            while rounds < 60 or rows_in_files(tmp_path) < 100 * rounds // 2:
                assert alive()
                rounds += 1
                spans(100)
                found = opened(tmp_path)
                assert found == list(range(1, len(found) + 1))
    assert opened(tmp_path) == list(range(1, 100 * rounds + 11))
    assert os.listdir(tmp_path / "spans" / "attempt=0") == ["rank=00000"]


@contextmanager
def two_converters(run_dir: Path) -> Iterator[Callable[[], bool]]:
    """Processes that convert as fast as they can; gives what tells whether they live."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    workers = [
        context.Process(target=_convert_again_and_again, args=(run_dir, stop)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    try:
        yield lambda: all(worker.is_alive() for worker in workers)
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
            worker.kill()
    assert [worker.exitcode for worker in workers] == [0, 0]
