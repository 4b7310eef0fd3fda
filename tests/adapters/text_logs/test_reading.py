"""Logs as they come: any prefix, any encoding, cut, glued, mixed; and never a crash."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.adapters.text_logs.logs import (
    alerts,
    c10,
    elastic,
    judged,
    progress,
    traceback,
    verdict,
    watchdog,
    write,
)
from tracekit.adapters.text_logs import TextLogs, read_logs, recognise


def rows(folder: Path, files: dict[str, str | bytes] | str) -> dict[str, list[dict[str, object]]]:
    paths = write(folder, {"job.log": files} if isinstance(files, str) else files)
    return {n: t.to_pylist() for n, t in read_logs(paths, "run", names=lambda p: p.name).items()}


def ranks(folder: Path, files: dict[str, str | bytes] | str) -> set[object]:
    return {row["rank"] for row in rows(folder, files)["facts"] if row["name"] == "log"}


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[rank3]:",
        "[3]: ",
        "[default3]:",
        "[trainer3]:[rank3]: ",
        "RANK 3 10:02:15 ",
        "Rank 3: ",
        "rank 3 | ",
        "(RankID 3) ",
        "[rank=3] || ",
        "3: ",
        " 3: ",
        "[1,3]<stdout>:",
        "[1,3]<stderr>: ",
        "2026-03-04 10:02:15,123 [rank3]: ",
        "[2026-03-04T10:02:15.123456Z] [rank=3] || ",
        "2026-03-04T10:02:15.123456789Z stdout F [rank3]: ",
        "2026年3月4日 10:02:15 [rank3]: ",
        "\x1b[36m[rank3]:\x1b[0m ",
        "(Worker pid=77, ip=10.0.0.2) [rank3]: ",
        " 43%|####      | 12/28 \r[rank3]: ",
    ],
)
def test_the_rank_is_found_under_any_prefix(tmp_path: Path, prefix: str) -> None:
    text = "".join(traceback(3, "ValueError: bad sample", prefix=prefix).splitlines(True))
    found = rows(tmp_path, text)["events"]
    assert [(row["rank"], row["text"]) for row in found] == [(3, "ValueError: bad sample")]
    assert ("frame", '"/job/train.py:41 step"') in found[0]["attributes"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "name",
    ["3/stderr.log", "attempt_0/3/stdout.log", "rank3.log", "rank-00003.err", "worker_3.out",
     "log.rank.3.txt", "train_3.log"],
)  # fmt: skip
def test_the_rank_is_found_in_the_name_of_a_file(tmp_path: Path, name: str) -> None:
    assert ranks(tmp_path, {name: traceback(3, "ValueError: x", prefix=" ".strip())}) == {3}


def test_a_rank_may_stand_at_the_end_of_a_line(tmp_path: Path) -> None:
    assert ranks(tmp_path, "10:02:15 loaded the data (RankID 3)\n") == {3}


def test_local_ranks_become_ranks_where_both_are_seen(tmp_path: Path) -> None:
    text = "[default1]:step 1\n[default0]:[rank8]: started\n[default2]:step 2\n"
    assert ranks(tmp_path, text) == {8, 9, 10}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16", "utf-16-le"])
def test_a_log_may_be_written_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    text = "RANK 0 10:02:15 开始训练\nRANK 1 10:02:16 错误 无法读取文件\nRANK 1 10:02:17 结束\n"
    found = rows(tmp_path, {"job.log": text.encode(encoding)})
    assert {row["rank"] for row in found["facts"] if row["name"] == "log"} == {0, 1}
    assert [row["text"] for row in found["events"]] == ["错误 无法读取文件"]


def test_nuls_and_colours_are_nothing(tmp_path: Path) -> None:
    text = (
        traceback(2, "ValueError: bad")
        .replace("Value", "Va\0lue")
        .replace("[rank2]", "\x1b[31m[rank2]\x1b[0m")
    )
    assert rows(tmp_path, text)["events"][0]["text"] == "ValueError: bad"


def test_lines_that_were_glued_together_come_apart(tmp_path: Path) -> None:
    text = watchdog(0, 7).rstrip("\n") + watchdog(1, 7).rstrip("\n") + "\n"
    found = rows(tmp_path, progress(range(3)) + " 43%|###   | 12/28 " + text)
    assert {row["rank"] for row in found["spans"]} == {0, 1}


def test_times_without_a_date_run_over_midnight(tmp_path: Path) -> None:
    text = "".join(
        f"RANK {rank} {time} message {time}\n"
        for time in ("23:59:58", "23:59:59", "00:00:01", "00:00:02")
        for rank in (0, 1)
    )
    found = rows(tmp_path, text + traceback(1, "ValueError: x", prefix="RANK 1 00:00:03 "))
    last = [row["time_ns"] for row in found["facts"] if row["name"] == "log"]
    assert found["events"][0]["time_ns"] - last[0] == 1_000_000_000  # type: ignore[operator]


def test_watchdog_lines_become_open_collectives(tmp_path: Path) -> None:
    found = rows(tmp_path, progress(range(4)) + watchdog(2, 101, op="_ALLGATHER_BASE", numel=640))
    span = found["spans"][0]
    assert (span["rank"], span["kind"], span["is_open"]) == (2, "comm", True)
    assert (span["collective_op"], span["collective_seq"]) == ("all_gather", 101)
    assert span["duration_ns"] == 600_012 * 1_000_000
    assert ("numel", "640") in span["attributes"]  # type: ignore[operator]
    told = [json.loads(str(r["value"])) for r in found["facts"] if r["name"] == "last_seq"]
    assert told == [{"group": "0", "enqueued": 101, "completed": 100}]
    sources = {row["source"] for row in found["facts"] if row["name"] == "last_seq"}
    assert sources == {"job.log:22"}


def test_two_jobs_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    first = progress(range(2)) + traceback(1, "ValueError: bad sample")
    first += elastic({1: 1, 0: -15}, first=1)
    second = progress(range(2), steps=30, minute=30)
    found = rows(tmp_path, first + second)
    assert {(row["attempt"], row["text"]) for row in found["events"]} == {
        (0, "ValueError: bad sample")
    }
    assert {row["attempt"] for row in found["facts"]} == {0, 1}
    assert alerts(judged([tmp_path])) == []  # the last one is healthy


def test_restarts_of_a_job_are_attempts(tmp_path: Path) -> None:
    files = {
        "attempt_0/0/stderr.log": traceback(0, "ValueError: first", prefix=""),
        "attempt_1/0/stderr.log": traceback(0, "KeyError: second", prefix=""),
    }
    files = {name: text.replace("[rank0]: ", "") for name, text in files.items()}
    found = rows(tmp_path, dict(files))
    assert [(row["attempt"], row["text"]) for row in found["events"]] == [
        (0, "ValueError: first"),
        (1, "KeyError: second"),
    ]


def test_many_files_are_one_job(tmp_path: Path) -> None:
    files = {f"{rank}/stderr.log": "step 1\nstep 2\n" for rank in range(200)}
    files["137/stderr.log"] += traceback(137, "ValueError: bad").replace("[rank137]: ", "")
    result = verdict(tmp_path, dict(files))
    assert alerts(result) == [("crash.error", (137,), "likely")]


def test_lines_of_nccl_are_left_to_others(tmp_path: Path) -> None:
    """Their processes are not ranks by what is written there."""
    text = "node0:77:99 [0] NCCL WARN Connection closed by remote peer node1<3292>\n" * 3
    assert not recognise(text.encode(), tmp_path / "nccl.log")
    assert read_logs(write(tmp_path, {"nccl.log": text}), "run") == {}


@pytest.mark.parametrize(
    "head",
    [b"", b"PAR1" + bytes(200), bytes(range(256)) * 20, b'{"a": 1}', b"\x80\x02}q\0", b"<html>",
     b"# Title\n\nSome words about a thing.\n", b"a,b\n1,2\n"],
)  # fmt: skip
def test_other_files_are_not_taken_for_logs(tmp_path: Path, head: bytes) -> None:
    path = write(tmp_path, {"file.txt": head})[0]
    assert not TextLogs().recognizes(path, head)


HOSTILE = [
    "[" * 5000, "[rank1]:" * 2000, "1:" * 8000, "a" * 20_000, "((" * 8000, "/" * 20_000,
    "\x1b[" * 8000, "rank " * 4000, "12:00:00 " * 2000, "Timeout(ms)=" * 1500, "[Rank 1" * 2000,
    "Watchdog caught collective operation timeout: WorkNCCL(" * 300,
    "Detected mismatch between collectives on ranks. Rank 1 is running collective:"
    " CollectiveFingerPrint(" * 150,
    "ranks [" + "1, " * 5000 + "x", 'File "' * 3000, "error: n: tasks 0-999999999: Killed " * 300,
    "oom-kill:" * 1800, "JOB 1 " * 2500 + "CANCELLED AT", "saving " * 2300, "/dev/shm " * 1700,
    "ERROR" * 3000, "x.y." * 4000 + "Error: z", "0x" * 8000, "%|" * 8000, "\r" * 16_000,
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:12].strip())
def test_hostile_lines_cost_no_more_than_their_length(tmp_path: Path, line: str) -> None:
    """A megabyte of each: a pattern that is not linear would take minutes."""
    text = "".join(f"{line}\n" for _ in range(max(1, 1_000_000 // len(line))))
    read_logs(write(tmp_path, {"job.log": "[rank0]: begins\n" + text}), "run")


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    text = "[rank0]: begins\n" + "x" * 5_000_000 + "\n" + traceback(0, "ValueError: after it")
    assert rows(tmp_path, text)["events"][0]["source"] == "job.log:3"


def test_no_bytes_make_it_fail(tmp_path: Path) -> None:
    """Logs that were damaged anywhere are read as far as they go."""
    chance = random.Random(7)
    whole = (progress(range(3)) + watchdog(1, 9) + traceback(2, "ValueError: x")
             + elastic({2: 1, 0: -15, 1: -15}, first=2) + c10(0, "x")).encode()  # fmt: skip
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 80)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        start = chance.randrange(len(damaged) // 2)
        tables = read_logs(write(tmp_path, {"job.log": bytes(damaged[start:])}), "run")
        assert all(isinstance(table, pa.Table) for table in tables.values())


@pytest.mark.parametrize("text", [b"", b"\0" * 87, b"\xff\xfe", b"{", b'{"message": {}}', b"\n\n"])
def test_files_with_nothing_in_them_give_nothing(tmp_path: Path, text: bytes) -> None:
    told: list[str] = []
    paths = write(tmp_path, {"1/error.json": text})
    tables = read_logs(paths, "run", skip=lambda path, reason: told.append(reason))
    assert not tables.get("events")
    assert not tables.get("spans")
