"""Compacted files hold the same rows in order, and there is no moment with fewer or more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.ranks import collectives, journal, recording, spans
from tests.dataset.tables import (
    SECOND,
    UNIX,
    event_table,
    fact_table,
    opened,
    span_ids,
    span_table,
)
from tracekit import recorder
from tracekit.dataset import compact, convert, finalize, open_run, write_table
from tracekit.errors import InputError


def files(run_dir: Path) -> list[Path]:
    return sorted(run_dir.rglob("*.parquet"))


def metadata(path: Path, key: bytes) -> Any:
    return json.loads(pq.read_metadata(path).metadata[key])


def two_ranks(run_dir: Path, steps: int = 3) -> None:
    for rank in (1, 0):
        rows = [
            {"rank": rank, "step": step, "span_id": 2 * step + n, "start_ns": UNIX + 5 * step - n}
            for step in range(steps)
            for n in (1, 2)
        ]
        rows.append({"rank": rank, "span_id": 99})
        write_table(run_dir, "spans", span_table(rows), world_size=2)


def test_rows_come_in_the_order_of_step_rank_and_time(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    done = compact(tmp_path)
    (path,) = files(tmp_path)
    assert path.parent == tmp_path / "spans"
    assert path.name.startswith("compact-")
    assert (done.files, done.replaced, done.rows) == ([path], 2, 14)
    rows = pq.read_table(path, columns=["step", "rank", "span_id"]).to_pylist()
    assert [(row["step"], row["rank"], row["span_id"]) for row in rows] == [
        *((s, r, 2 * s + n) for s in range(3) for r in (0, 1) for n in (2, 1)),
        *((None, r, 99) for r in (0, 1)),
    ]


def test_all_tables_are_compacted(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_table(tmp_path, "spans", span_table([{"rank": rank, "span_id": 1}]))
        times = [{"rank": rank, "step": 1 - n, "time_ns": UNIX + n} for n in (0, 1)]
        write_table(tmp_path, "events", event_table(times))
        write_table(tmp_path, "facts", fact_table([{"rank": rank}]))
    write_table(tmp_path, "facts", fact_table([{"rank": None, "name": "cluster"}]))
    compact(tmp_path)
    with open_run(tmp_path) as run:
        events = run.table("events").to_pylist()
        assert [(row["step"], row["rank"]) for row in events] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        facts = [row["name"] for row in run.table("facts").to_pylist()]
        assert sorted(facts) == ["cluster", "seed", "seed"]
    assert len(files(tmp_path)) == 4  # the fact of no rank stays where it was


def test_a_compacted_file_names_what_it_replaces_and_covers(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True):
        spans(5)
        first = convert(journal(tmp_path), tmp_path)
        collectives(5)
        second = convert(journal(tmp_path), tmp_path)
        compact(tmp_path)
        (path,) = (tmp_path / "spans").glob("*.parquet")
        names = {file.name for file in (*first.files, *second.files)}
        assert set(metadata(path, b"tracekit.replaces")) == names
        covers = metadata(path, b"tracekit.covers")
        assert covers["slots"] == [[0, 256 + 1 + 10]]
        assert (covers["spans"], covers["collectives"], covers["ids"]) == (10, 5, [1, 10])


def test_a_live_run_goes_on_after_its_parts_were_compacted(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True):
        for part in range(1, 5):
            spans(5)
            recorder.event("loss", 0.5)
            convert(journal(tmp_path), tmp_path)
            if part % 2 == 0:
                compact(tmp_path)
            with open_run(tmp_path) as run:
                assert len(run.table("events")) == part
                assert len(span_ids(run)) == len(set(span_ids(run))) == 5 * part
    finalize(journal(tmp_path), tmp_path)
    compact(tmp_path)
    with open_run(tmp_path) as run:
        assert len(span_ids(run)) == 20
        assert len(run.table("events")) == 4
    assert len(list((tmp_path / "spans").rglob("*"))) == 1


def test_journals_of_dead_ranks_are_compacted_too(tmp_path: Path) -> None:
    with recording(tmp_path):
        spans(5)
    done = compact(tmp_path)
    assert done.finished == ["rank-00000.00c0ffee-100"]
    assert len(opened(tmp_path)) == 5


def test_every_attempt_has_a_file_of_its_own(tmp_path: Path) -> None:
    for attempt in (0, 1):
        for rank in (0, 1):
            row = {"attempt": attempt, "rank": rank, "step": 1, "span_id": 1}
            write_table(tmp_path, "spans", span_table([row]))
    compact(tmp_path)
    assert [path.name[:12] for path in files(tmp_path)] == ["compact-000-", "compact-001-"]
    assert opened(tmp_path) == [(a, r, 1) for a in (0, 1) for r in (0, 1)]


def test_a_second_compaction_changes_nothing(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    compact(tmp_path)
    before = files(tmp_path)
    assert compact(tmp_path).files == []
    assert files(tmp_path) == before


def test_a_compacted_file_is_compacted_again_with_newer_parts(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    compact(tmp_path)
    write_table(tmp_path, "spans", span_table([{"span_id": 500, "step": 0}]))
    compact(tmp_path)
    (path,) = files(tmp_path)
    assert len(metadata(path, b"tracekit.replaces")) == 3
    assert len(opened(tmp_path)) == 15


def test_what_it_replaces_does_not_count_when_it_was_killed_before_unlinking(
    tmp_path: Path,
) -> None:
    two_ranks(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    wanted = opened(tmp_path / "run")
    compact(tmp_path / "run")
    shutil.copytree(tmp_path / "before", tmp_path / "run", dirs_exist_ok=True)
    assert len(files(tmp_path / "run")) == 3
    assert opened(tmp_path / "run") == wanted
    assert compact(tmp_path / "run").files == []
    assert len(files(tmp_path / "run")) == 1


def test_unfinished_files_of_a_killed_compaction_are_removed(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    half = tmp_path / "spans" / ".compact-000-0011.parquet.77-aa.tmp"
    half.write_bytes(b"PAR1")
    compact(tmp_path)
    assert not half.exists()


def test_two_compactions_of_the_same_files_count_once(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    wanted = opened(tmp_path)
    compact(tmp_path)
    (path,) = files(tmp_path)
    shutil.copy(path, path.with_name("compact-000-ffffffffffff.parquet"))
    assert opened(tmp_path) == wanted
    compact(tmp_path)
    assert files(tmp_path) == [path]


def test_one_at_a_time_compacts_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_ranks(tmp_path)

    def meanwhile(*_: Any) -> None:
        with pytest.raises(InputError, match="is being compacted by another process"):
            compact(tmp_path)

    monkeypatch.setattr("tracekit.dataset.compaction._clean_up", meanwhile)
    assert len(compact(tmp_path).files) == 1


def test_files_that_tracekit_did_not_write_are_left_alone(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    foreign = tmp_path / "spans" / "mine.parquet"
    pq.write_table(span_table([{"rank": 7, "span_id": 1}]), foreign)
    compact(tmp_path)
    assert foreign.exists()
    assert len(files(tmp_path)) == 2
    assert len(opened(tmp_path)) == 15


ROWS = st.lists(
    st.tuples(
        st.integers(0, 4),  # rank
        st.one_of(st.none(), st.integers(0, 20)),  # step
        st.integers(0, 50),  # start
    ),
    max_size=60,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5), st.sampled_from([3, 10, 1000]))
def test_any_rows_are_merged_in_order_whatever_fits_into_memory(
    parts: list[list[tuple[int, int | None, int]]], fits: int
) -> None:
    numbered: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr("tracekit.dataset.compaction._MOST_ROWS", fits)
        patched.setattr("tracekit.dataset._merge._LEAST_ROWS", fits)
        patched.setattr("tracekit.dataset._merge.OUT_ROWS", 7)
        patched.setattr("tracekit.dataset.compaction.OUT_ROWS", 7)
        for part in parts:
            rows = [
                {"rank": rank, "step": step, "start_ns": UNIX + SECOND * start, "span_id": n}
                for n, (rank, step, start) in enumerate(part, len(numbered))
            ]
            numbered += rows
            if rows:
                write_table(Path(folder), "spans", span_table(rows))
        if not numbered:
            return
        compact(Path(folder))
        (path,) = files(Path(folder))
        found = pq.read_table(path).to_pylist()
        assert len(list(path.parent.iterdir())) == 1
    keys = [(row["step"] is None, row["step"] or 0, row["rank"], row["start_ns"]) for row in found]
    assert keys == sorted(keys)
    assert sorted(row["span_id"] for row in found) == list(range(len(numbered)))
    of_id = {row["span_id"]: row for row in found}
    assert all(of_id[row["span_id"]]["start_ns"] == row["start_ns"] for row in numbered)
