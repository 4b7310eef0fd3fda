"""Files that are no dumps, damaged dumps, dumps of several jobs."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import pytest

from tests.adapters.flight_recorder.samples import Job, entry, hangs, read, verdict

ALL = {"0": (0, 1, 2, 3)}


class Payload:
    """Runs a command when it is loaded by pickle as it comes."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def hanging(folder: Path, ranks: tuple[int, ...] = (0, 1, 3)) -> Job:
    job = Job(folder, ALL)
    for rank in ranks:
        job.dump(rank, [entry(9), entry(10, state="started")])
    return job


@pytest.mark.parametrize("size", [0, 87, 700])
def test_a_cut_dump_is_named_and_its_rank_not_accused(tmp_path: Path, size: int) -> None:
    path = hanging(tmp_path).dump(2, [entry(9), entry(10, state="started")])
    path.write_bytes(path.read_bytes()[:size])
    analysis, intake = read(tmp_path)
    assert [skipped for skipped, _ in intake.skipped] == [path]
    assert "empty" in intake.skipped[0][1] or "cut" in intake.skipped[0][1]
    assert analysis is not None
    assert hangs(analysis) == [("hang.missing_rank", (), "cannot_tell")]
    assert analysis.findings[0].evidence["no_dump"] == [2]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_names_a_function_is_refused_and_nothing_runs(
    tmp_path: Path, protocol: int
) -> None:
    hanging(tmp_path)
    ran = tmp_path / "ran"
    value = {"version": "2.10", "pg_config": {}, "entries": [Payload(f"touch {ran}")]}
    bad = tmp_path / "nccl_trace_rank_2"
    bad.write_bytes(pickle.dumps(value, protocol))
    _, intake = read(tmp_path)
    (path, reason), *more = intake.skipped
    assert (path, more) == (bad, [])
    assert "system" in reason
    assert not ran.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "hostile",
    [
        b"\x80\x02" + b"]" * 2_000_000 + b".",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # remembers under a number that would take gigabytes
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 45) + b"x.",  # claims 32 TiB of bytes
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02}X\x07\x00\x00\x00entries(" + b"(" * 50_000 + b"t" * 50_000 + b"ls.",
    ],
)
def test_hostile_pickles_cost_neither_memory_nor_a_crash(tmp_path: Path, hostile: bytes) -> None:
    hanging(tmp_path)
    (tmp_path / "nccl_trace_rank_2").write_bytes(hostile)
    analysis, intake = read(tmp_path)
    assert analysis is not None
    assert len(intake.skipped) == 1


def test_json_that_is_nested_too_deeply_or_cut_is_named(tmp_path: Path) -> None:
    hanging(tmp_path)
    (tmp_path / "rank_2.json").write_bytes(b'{"entries":' + b"[" * 100_000)
    (tmp_path / "rank_5.json").write_bytes(b'{"pg_status":{},"entries":[{"profiling_name":"a')
    _, intake = read(tmp_path)
    assert {path.name for path, _ in intake.skipped} == {"rank_2.json", "rank_5.json"}


def test_other_pickles_and_entries_of_another_shape_are_named(tmp_path: Path) -> None:
    hanging(tmp_path)
    values = {
        "list_4": [1, 2, 3],
        "dict_5": {"a": 1},
        "number_6": 7,
        "odd_7": {"entries": [3, None, {"profiling_name": 4}, {"process_group": [[]]}]},
    }
    for name, value in values.items():
        (tmp_path / name).write_bytes(pickle.dumps(value, 2))
    analysis, intake = read(tmp_path)
    assert analysis is not None
    assert {path.name for path, _ in intake.skipped} == set(values)


def test_numbers_of_any_size_do_no_harm(tmp_path: Path) -> None:
    job = hanging(tmp_path)
    huge = 10**40
    odd = entry(10, sizes=[[huge, huge]], timeout_ms=huge, time_created_ns=huge)
    job.dump(2, [entry(9), odd, entry(10, state="started", sizes=[[-5, huge]])])
    analysis, intake = read(tmp_path)
    assert analysis is not None
    assert "1 of 3 entries" in intake.skipped[0][1]
    assert [one for one in hangs(analysis) if one[1]] == []


def test_the_rank_comes_from_the_groups_where_the_name_says_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1), "8": (0,), "9": (1,)})
    job.dump(0, [entry(9), entry(10, state="started")], name="left")
    job.dump(1, [entry(9)], name="right")
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (1,), "likely")]


def test_hosts_come_from_names_that_differ_before_the_rank(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        calls = [entry(9)] if rank == 2 else [entry(9), entry(10, state="started")]
        job.dump(rank, calls, name=f"prefix_host-node{rank // 2}_{{rank}}")
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (2,), "likely")]
    assert any("on host-node1" in one for one in analysis.findings[0].advice)


def test_dumps_of_two_jobs_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    job = hanging(tmp_path)
    job.dump(2, [entry(9)])
    other = Job(tmp_path, {"0": (0, 1)})
    for rank in range(2):
        other.dump(rank, [entry(7000, state="started", thread_id="7")], name="other_{rank}")
    analysis, intake = read(tmp_path)
    assert analysis is not None
    assert hangs(analysis) == [("hang.missing_rank", (2,), "likely")]
    assert {path.name for path, _ in intake.skipped} == {"other_0", "other_1"}
    assert all("of another job (2 ranks" in reason for _, reason in intake.skipped)


def test_versions_may_differ_and_are_noted(tmp_path: Path) -> None:
    job = hanging(tmp_path)
    job.dump(2, [entry(9)], version="2.4", as_json=True)
    analysis, intake = read(tmp_path)
    assert analysis is not None
    assert hangs(analysis) == [("hang.missing_rank", (2,), "likely")]
    assert "2.10, 2.4" in intake.notes[0][1]


def test_operations_and_backends_that_nobody_knows_are_taken_as_they_are(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        last = [] if rank == 3 else [entry(10, "teleport", state="started", backend="nccl2")]
        job.dump(rank, [entry(9, "teleport", backend="nccl2"), *last])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (3,), "likely")]
    assert "teleport 10" in analysis.findings[0].title
