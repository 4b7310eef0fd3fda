"""A run is opened in whatever state it is; what cannot be used is named, what can is there once."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dataset.ranks import (
    collectives,
    journal,
    journal_folder,
    journals,
    killed,
    recording,
    spans,
)
from tests.dataset.tables import opened, span_ids, span_table
from tests.journal.handmade import Journal, span
from tracekit import recorder
from tracekit.dataset import (
    SPANS,
    Duplicate,
    compact,
    convert,
    finalize,
    open_run,
    write_table,
)
from tracekit.dataset.parts import read_footer
from tracekit.errors import InputError


def facts(run_dir: Path, name: str) -> list[Any]:
    """The values of the facts of a name, in the order of ranks."""
    with open_run(run_dir) as run:
        rows = [row for row in run.table("facts").to_pylist() if row["name"] == name]
    rows.sort(key=lambda row: (row["attempt"], row["rank"]))
    return [json.loads(row["value"]) for row in rows]


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


# What is no run


def _nothing(path: Path) -> None:
    pass


def _file(path: Path) -> None:
    path.write_text("x")


def _other(path: Path) -> None:
    (path / "photos").mkdir(parents=True)


def _of_runs(path: Path) -> None:
    (path / "first" / "attempt-000").mkdir(parents=True)
    write_json(path / "second" / "run.json", {})


def _nothing_recorded(path: Path) -> None:
    write_json(path / "run.json", {"uid": "u", "label": "l"})


def _only_damage(path: Path) -> None:
    (path / "spans").mkdir(parents=True)
    (path / "spans" / "a.parquet").write_bytes(b"")
    (path / "spans" / "b.parquet").write_bytes(b"PAR1")


def _elsewhere(path: Path) -> None:
    identity = {"rank": 0, "host": "node-b", "journal": "/scratch/of/node-b"}
    write_json(path / "attempt-000" / "ranks" / "rank-00000.aa-1.json", identity)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_nothing, "does not exist"),
        (_file, "a file, not a run directory"),
        (Path.mkdir, "the directory is empty"),
        (_other, "not a run directory: no run.json, no attempt-000, no spans in it"),
        (_of_runs, "not a run directory but a folder of runs: first, second"),
        (_nothing_recorded, "nothing was recorded in this run"),
        (_only_damage, "nothing in it can be read: spans/a.parquet: the file is empty"),
        (_elsewhere, "its journals lie elsewhere, collect them first: node-b:/scratch/of/node-b"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_reason(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "given"
    make(path)
    with pytest.raises(InputError) as refused:
        open_run(path)
    assert str(refused.value).startswith(f"{path}: {reason}")


# Mixes


def test_parts_compacted_files_and_journals_make_one_table(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for rank in (0, 1):
        with recording(run_dir, rank, world_size=3, process=f"00c0ffee-{rank}"):
            spans(10)
    for reader in journals(run_dir):
        finalize(reader, run_dir)
    compact(run_dir)
    with recording(run_dir, 2, world_size=3, lives=True):
        spans(10)
        convert(journal(run_dir), run_dir)
        spans(10)
        with recorder.span("now"):
            pass
        with open_run(run_dir) as run:
            assert span_ids(run) == [
                *((0, rank, n) for rank in (0, 1) for n in range(1, 11)),
                *((0, 2, n) for n in range(1, 22)),
            ]
            assert (run.world_size, run.ranks, run.run_id) == (3, (0, 1, 2), "run-1")
            assert run.coverage.missing_ranks == ()
            files = [source for source in run.sources["spans"] if isinstance(source, Path)]
            assert len(files) == 2
            assert {row["run_id"] for row in run.table("spans").to_pylist()} == {"run-1"}


def test_several_attempts_stay_apart(tmp_path: Path) -> None:
    with recording(tmp_path, 0, world_size=2, attempt=0):
        spans(3)
    with recording(tmp_path, 1, world_size=2, attempt=1):
        spans(4)
    with open_run(tmp_path) as run:
        assert [(a.number, a.ranks, a.missing_ranks) for a in run.attempts] == [
            (0, (0,), (1,)),
            (1, (1,), (0,)),
        ]
        assert run.coverage.missing_ranks == (0,)
        assert len(span_ids(run)) == 7


def test_a_live_rank_shows_what_it_is_in_the_middle_of(tmp_path: Path) -> None:
    with recording(tmp_path, lives=True), recorder.span("outer"):
        spans(3)
        with open_run(tmp_path) as run:
            rows = run.table("spans").to_pylist()
            assert [row["name"] for row in rows if row["is_open"]] == ["outer"]
            assert run.coverage.open_spans == 1
        assert facts(tmp_path, "end_state")[0]["state"] == "running"


def test_a_killed_run_is_read_from_its_journals(tmp_path: Path) -> None:
    with recording(tmp_path / "live"), recorder.span("outer"):
        spans(1000)
        dead = killed(tmp_path / "live", tmp_path / "dead")
    with open_run(dead) as run:
        assert len(span_ids(run)) == 1001
        assert run.coverage.open_spans == 1
    assert facts(dead, "end_state")[0]["state"] == "vanished"
    finalize(journal(dead), dead)
    assert len(opened(dead)) == 1001
    assert facts(dead, "end_state")[0]["state"] == "vanished"


def test_the_facts_of_a_rank_are_there_once_in_every_state(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    states = []
    with recording(run_dir, lives=True):
        recorder.fact("seed", 17)
        collectives(3)
        states.append(names_of_facts(run_dir))
        convert(journal(run_dir), run_dir)
        states.append(names_of_facts(run_dir))
    states.append(names_of_facts(run_dir))
    finalize(journal(run_dir), run_dir)
    states.append(names_of_facts(run_dir))
    compact(run_dir)
    states.append(names_of_facts(run_dir))
    assert states == [["clock", "end_state", "heartbeat", "last_seq", "rank", "seed"]] * 5
    last = {"group": "0011aabb", "enqueued": 2, "completed": 2}
    assert facts(run_dir, "last_seq") == [last]
    assert facts(run_dir, "rank")[0]["stem"] == "rank-00000.00c0ffee-100"


def names_of_facts(run_dir: Path) -> list[str]:
    with open_run(run_dir) as run:
        found: list[str] = run.table("facts")["name"].to_pylist()
    return sorted(found)


def test_what_does_not_fit_into_memory_goes_to_scratch_files_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.dataset._remainder._IN_MEMORY_ROWS", 1000)
    for rank in range(3):
        with recording(tmp_path, rank, world_size=3, process=f"00c0ffee-{rank}"):
            spans(600)
    with open_run(tmp_path) as run:
        scratch = [source for source in run.sources["spans"] if isinstance(source, Path)]
        assert len(scratch) == 2
        assert span_ids(run) == [(0, rank, n) for rank in range(3) for n in range(1, 601)]
        folder = scratch[0].parent
    assert not folder.exists()


def test_more_journals_than_files_may_be_open(tmp_path: Path) -> None:
    made = Journal()
    for number in range(80):
        made.chunk([span(number + 1)], number)
    made.save(journal_folder(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        assert len(opened(tmp_path)) == 80
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_journal_in_scratch_of_this_machine_is_read_there(tmp_path: Path) -> None:
    run_dir, scratch = tmp_path / "run", tmp_path / "scratch"
    with recording(scratch):
        spans(5)
    identity = {"rank": 0, "host": "node-a", "journal": str(journal_folder(scratch))}
    write_json(run_dir / "attempt-000" / "ranks" / "rank-00000.00c0ffee-100.json", identity)
    with open_run(run_dir) as run:
        assert len(span_ids(run)) == 5
        assert run.coverage.elsewhere == ()


def test_a_copied_run_is_read_from_its_copy_alone(tmp_path: Path) -> None:
    run_dir, copy = tmp_path / "run", tmp_path / "copy"
    with recording(run_dir, lives=True):
        spans(5)
        identity = {"rank": 0, "host": "node-a", "journal": str(journal_folder(run_dir))}
        write_json(run_dir / "attempt-000" / "ranks" / "rank-00000.00c0ffee-100.json", identity)
        killed(run_dir, copy)
        spans(5)
    assert len(opened(copy)) == 5
    assert len(opened(run_dir)) == 10


# What cannot be read


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _text(path: Path) -> None:
    path.write_text("not Parquet at all")


def _newer(path: Path) -> None:
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.replace_schema_metadata({"tracekit.schema": "7"}), path)


def _retyped(path: Path) -> None:
    rows = pq.read_table(path, partitioning=None)
    place = rows.schema.get_field_index("rank")
    pq.write_table(rows.set_column(place, "rank", rows["rank"].cast(pa.float64())), path)


def _without_column(path: Path) -> None:
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["span_id"]), path)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_empty, "the file is empty"),
        (_cut, "cut or not a Parquet file"),
        (_text, "cut or not a Parquet file"),
        (_newer, "written with tables of version 7"),
        (_retyped, "the column rank is double, not int32"),
        (_without_column, "the column span_id is missing"),
        (_dangling, "a link to nothing"),
    ],
)
def test_an_unreadable_part_is_skipped_named_and_counted(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    write_table(tmp_path, "spans", span_table([{"span_id": 1}]))
    (bad,) = write_table(tmp_path, "spans", span_table([{"span_id": 2}]))
    damage(bad)
    with open_run(tmp_path) as run:
        assert span_ids(run) == [(0, 0, 1)]
        assert run.coverage.skipped == ((bad, reason),)
        assert run.coverage.files == 2


def test_unreadable_journals_and_json_are_skipped_named_and_counted(tmp_path: Path) -> None:
    folder = journal_folder(tmp_path)
    good = Journal()
    good.chunk([span(1)])
    good.save(folder)
    cut = Journal().save(folder, "rank-00001.aa-2")
    cut.write_bytes(cut.read_bytes()[:5000])
    newer = Journal()
    newer.version = 3
    newest = newer.save(folder, "rank-00002.aa-3")
    half = folder.parent / "ranks" / "rank-00003.aa-4.json"
    half.parent.mkdir()
    half.write_text('{"rank": 3')
    with open_run(tmp_path) as run:
        assert span_ids(run) == [(0, 0, 1)]
        assert dict(run.coverage.skipped) == {
            half: "cut or not JSON",
            cut: "the head is cut: 5000 of 88384 bytes",
            newest: "written in version 3 of the format; this tracekit reads up to 1",
        }
        assert run.coverage.files == 5


@pytest.mark.parametrize("journal_left", [True, False])
def test_beside_a_damaged_file_of_spans_events_are_there_once(
    tmp_path: Path, journal_left: bool
) -> None:
    with recording(tmp_path):
        spans(3)
        recorder.event("loss", 0.5)
    done = (convert if journal_left else finalize)(journal(tmp_path), tmp_path)
    (damaged,) = [path for path in done.files if "spans" in path.parts]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with open_run(tmp_path) as run:
        assert len(run.table("spans")) == (3 if journal_left else 0)
        assert len(run.table("events")) == 1
        assert [path for path, _ in run.coverage.skipped] == [damaged]


def test_files_with_fewer_columns_are_of_an_older_tracekit(tmp_path: Path) -> None:
    rows = span_table([{"span_id": 1, "step": 4}]).drop_columns(["device", "attributes", "step"])
    (tmp_path / "spans").mkdir()
    pq.write_table(rows, tmp_path / "spans" / "old.parquet")
    with open_run(tmp_path) as run:
        (row,) = run.table("spans").to_pylist()
        assert run.table("spans").schema.equals(SPANS)
    assert (row["span_id"], row["step"], row["attributes"]) == (1, None, None)


def test_a_part_that_vanishes_while_it_is_opened_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, "spans", span_table([{"span_id": 1}]))
    write_table(tmp_path, "spans", span_table([{"span_id": 2}]))
    calls = []

    def compacted_meanwhile(path: Path, table: str) -> Any:
        calls.append(path)
        if len(calls) == 2:
            compact(tmp_path)
        return read_footer(path, table)

    monkeypatch.setattr("tracekit.dataset._listing.read_footer", compacted_meanwhile)
    assert opened(tmp_path) == [(0, 0, 1), (0, 0, 2)]


# Who is who


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 3):
        with recording(tmp_path, rank, world_size=5, process=f"00c0ffee-{rank}"):
            spans(1)
    with open_run(tmp_path) as run:
        assert run.coverage.missing_ranks == (1, 2, 4)


def test_of_two_processes_of_one_rank_the_one_with_collectives_counts(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with recording(run_dir, process="00c0ffee-1"):
        spans(50)
    with recording(run_dir, process="00c0ffee-2"):
        collectives(3)
    duplicate = Duplicate(0, 0, ("rank-00000.00c0ffee-2", "rank-00000.00c0ffee-1"))
    for _ in range(3):  # as journals, as parts, compacted
        with open_run(run_dir) as run:
            assert len(span_ids(run)) == 3
            assert run.coverage.duplicate_ranks == (duplicate,)
            identities = [f for f in run.table("facts").to_pylist() if f["name"] == "rank"]
            assert len(identities) == 1
        for reader in journals(run_dir):
            finalize(reader, run_dir)
        if not journals(run_dir):
            compact(run_dir)
    assert len(list((run_dir / "spans").rglob("part-*1-*.parquet"))) == 1


def test_a_compacted_process_can_lose_to_a_later_one(tmp_path: Path) -> None:
    for rank, process in ((0, "00c0ffee-1"), (1, "00c0ffee-2")):
        with recording(tmp_path, rank, world_size=2, process=process):
            spans(5)
    compact(tmp_path)
    with recording(tmp_path, 0, world_size=2, process="00c0ffee-3"):
        collectives(2)
    with open_run(tmp_path) as run:
        assert [key[:2] for key in span_ids(run)] == [(0, 0)] * 2 + [(0, 1)] * 5


def test_the_launcher_knows_how_ranks_ended(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        with recording(tmp_path / "live", rank, world_size=4, process=f"00c0ffee-{rank + 10}"):
            dead = tmp_path / f"dead-{rank}"
            killed(tmp_path / "live", dead)
            for path in journal_folder(dead).iterdir():
                (tmp_path / "run" / "attempt-000" / "journal").mkdir(parents=True, exist_ok=True)
                if path.name.startswith(f"rank-{rank:05d}"):
                    shutil.copy(path, journal_folder(tmp_path / "run"))
    words = [
        {"rank": 0, "pid": 10, "exitcode": -9},
        {"rank": 1, "pid": 99, "exitcode": 1},
        {"rank": 3, "pid": 13, "signal": 15},
    ]
    write_json(tmp_path / "run" / "attempt-000" / "launcher.json", words)
    states = {state["rank"]: state for state in facts(tmp_path / "run", "end_state")}
    assert (states[0]["state"], states[0]["signal"], states[0]["source"]) == (
        "signal",
        9,
        "launcher",
    )
    assert (states[1]["state"], states[1]["exitcode"]) == ("exit", 1)
    assert states[2]["state"] == "vanished"
    assert (states[3]["state"], states[3]["signal"]) == ("signal", 15)


def test_an_exception_is_more_than_its_exit_code(tmp_path: Path) -> None:
    with recording(tmp_path):
        recorder.fact("exception", {"type": "ValueError", "frame": "train.py:3 main"})
    assert facts(tmp_path, "end_state")[0]["state"] == "exception"
    finalize(journal(tmp_path), tmp_path, {"state": "exit", "exitcode": 1})
    word = [{"rank": 0, "pid": 100, "exitcode": 1}]
    write_json(tmp_path / "attempt-000" / "launcher-node-a.json", word)
    (state,) = facts(tmp_path, "end_state")
    assert (state["state"], state["type"], state["exitcode"]) == ("exception", "ValueError", 1)


def test_stacks_become_facts(tmp_path: Path) -> None:
    with recording(tmp_path):
        spans(1)
    stacks = [{"time_ns": 5, "threads": [{"name": "main", "frames": ["a.py:3 f"]}], "state": "S"}]
    write_json(tmp_path / "attempt-000" / "ranks" / "rank-00000.00c0ffee-100.stacks.json", stacks)
    assert facts(tmp_path, "stack") == stacks


def test_a_run_on_a_read_only_disk_can_be_opened(tmp_path: Path) -> None:
    with recording(tmp_path):
        spans(3)
    before = sorted(path for path in tmp_path.rglob("*"))
    for path in [tmp_path, *before]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    try:
        assert len(opened(tmp_path)) == 3
        assert sorted(path for path in tmp_path.rglob("*")) == before
    finally:
        for path in [tmp_path, *before]:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
