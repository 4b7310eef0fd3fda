"""Answers of NCCL's RAS: who is dead, silent or behind; what a single look cannot tell."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nccl.logs import ranks, write
from tests.adapters.nccl.ras_answers import Comm, as_json, text
from tests.cli.conftest import Call
from tracekit.adapters.nccl_ras import NcclRasImporter, read_looks, recognize

FORMS: dict[str, Callable[..., str]] = {
    "2.24": lambda *comms: text(*comms, version="2.24.3"),
    "2.29": lambda *comms: text(*comms, verbose=False),
    "2.29, verbose": text,
    "JSON": as_json,
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def at(minute: int, second: int = 0) -> str:
    return f"2026-05-01 10:{minute:02d}:{second:02d}"


def looks(*answers: tuple[str, str]) -> str:
    """Reports with the time before each, as a loop with ``date`` leaves them."""
    return "".join(f"{time}\n{answer}" for time, answer in answers)


def analyzed(folder: Path, call: Call, *texts: str) -> dict[str, Any]:
    for number, one in enumerate(texts):
        (folder / f"look{number}").write_text(one)
    shown: dict[str, Any] = json.loads(call("analyze", folder, "--format", "json").out)
    return shown


def alarms(shown: dict[str, Any]) -> list[tuple[str, list[int], str, str]]:
    return [
        (one["id"], one["ranks"], one["severity"], one["certainty"])
        for one in shown["findings"] if one["severity"] != "info"
    ]  # fmt: skip


def even(size: int, **more: Any) -> Comm:
    return Comm({"AllReduce": [640] * size, "AllGather": [12] * size}, **more)


def behind(size: int, rank: int, count: int = 60, others: int = 64, **more: Any) -> Comm:
    return Comm({"AllReduce": [count if r == rank else others for r in range(size)]}, **more)


@every_form
def test_a_healthy_answer_alarms_nobody(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    shown = analyzed(tmp_path, call, form(even(32)), form(even(32)))
    assert (shown["symptom"], alarms(shown)) == ("healthy", [])


@every_form
def test_a_dead_process_is_named_with_its_rank_and_its_place(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    shown = analyzed(tmp_path, call, form(even(32, gone=[21], dead=True)))
    assert alarms(shown) == [("crash.vanished", [21], "critical", "likely")]
    assert shown["symptom"] == "crash"
    first = shown["findings"][0]
    assert "rank 21 (process 5021 on 10.0.0.3, GPU 5)" in first["title"]
    assert "ps -o pid,stat,wchan:20,cmd -p 5021" in " ".join(first["advice"])


@every_form
def test_a_silent_process_is_a_warning_until_it_stays_silent(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    silent = form(even(32, gone=[21]))
    shown = analyzed(tmp_path, call, silent)
    assert alarms(shown) == [("hang.missing_rank", [21], "warning", "likely")]
    (tmp_path / "look1").write_text(silent.replace("10:00:00", "10:01:00"))
    os.utime(tmp_path / "look0", (1e9, 1e9))
    os.utime(tmp_path / "look1", (1e9 + 60, 1e9 + 60))
    shown = json.loads(call("analyze", tmp_path, "--format", "json").out)
    assert alarms(shown) == [("hang.missing_rank", [21], "critical", "likely")]
    assert "twice within 60 s" in shown["findings"][0]["title"]


def test_a_process_that_is_dead_when_nothing_is_in_use_may_have_ended_well(
    tmp_path: Path, call: Call
) -> None:
    report = text(even(8, gone=[7], dead=True))
    before, _, rest = report.partition("Group     Comms")
    job, _, _ = rest.partition("\nErrors\n")[2].partition("#0-0")
    none = "No communicator data collected!\n\nErrors\n"
    report = f"{before}{none}{job}\nWarnings\n========\n"
    assert alarms(analyzed(tmp_path, call, report)) == [
        ("crash.vanished", [], "warning", "cannot_tell")
    ]


@every_form
def test_counts_that_differ_in_one_look_are_no_fault(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    shown = analyzed(tmp_path, call, form(behind(32, 7)))
    assert (shown["symptom"], alarms(shown)) == ("healthy", [])
    assert any("ncclras -v; sleep" in advice for advice in shown["findings"][0]["advice"])


@pytest.mark.parametrize(
    ("seconds", "severity"), [(59, "critical"), (10, "warning"), (2, None)], ids=str
)
@every_form
def test_a_rank_that_stays_behind_while_nothing_moves_did_not_arrive(
    form: Callable[..., str], seconds: int, severity: str | None, tmp_path: Path, call: Call
) -> None:
    one = form(behind(32, 7))
    if form is as_json:
        told = [as_json(behind(32, 7), time=at(0)), as_json(behind(32, 7), time=at(0, seconds))]
        shown = analyzed(tmp_path, call, "".join(told))
    else:
        shown = analyzed(tmp_path, call, looks((at(0), one), (at(0, seconds), one)))
    if severity is None:
        assert alarms(shown) == []
        return
    assert alarms(shown) == [("hang.missing_rank", [7], severity, "likely")]
    first = shown["findings"][0]
    assert "60 launched, the others 64" in first["title"]
    assert f"in {seconds} s" in first["title"]
    assert "--pid 5007" in " ".join(first["advice"])


def test_without_times_nobody_is_accused(tmp_path: Path, call: Call) -> None:
    shown = analyzed(tmp_path, call, text(behind(32, 7)) * 2)
    assert alarms(shown) == [("hang.missing_rank", [], "warning", "cannot_tell")]


@every_form
def test_counts_that_move_are_no_hang(form: Callable[..., str], tmp_path: Path, call: Call) -> None:
    first, then = behind(32, 7), behind(32, 7, 164, 168)
    if form is as_json:
        told = as_json(first, time=at(0)) + as_json(then, time=at(1))
    else:
        told = looks((at(0), form(first)), (at(1), form(then)))
    assert alarms(analyzed(tmp_path, call, told)) == []


@every_form
def test_a_rank_that_launches_nothing_while_others_go_on_is_named(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    first, then = behind(32, 7), behind(32, 7, 60, 74)
    if form is as_json:
        told = as_json(first, time=at(0)) + as_json(then, time=at(0, 10))
    else:
        told = looks((at(0), form(first)), (at(0, 10), form(then)))
    shown = analyzed(tmp_path, call, told)
    assert alarms(shown) == [("hang.missing_rank", [7], "warning", "likely")]
    assert "launched nothing in 10 s" in shown["findings"][0]["title"]


@every_form
def test_the_few_that_are_listed_because_they_are_ahead_are_not_accused(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    ahead = Comm({"AllGather": [641 if rank in (12, 13) else 640 for rank in range(32)]})
    if form is as_json:
        told = as_json(ahead, time=at(0)) + as_json(ahead, time=at(1))
    else:
        told = looks((at(0), form(ahead)), (at(1), form(ahead)))
    shown = analyzed(tmp_path, call, told)
    assert alarms(shown) == [("hang.missing_rank", [], "critical", "cannot_tell")]
    assert "30 of 32 ranks" in shown["findings"][0]["title"]


@pytest.mark.parametrize("form", [text, as_json], ids=["text", "JSON"])
def test_a_rank_in_another_collective_is_a_mismatch(
    form: Callable[..., str], tmp_path: Path, call: Call
) -> None:
    crossed = Comm(
        {
            "AllReduce": [60 if rank == 3 else 61 for rank in range(8)],
            "Broadcast": [5 if rank == 3 else 4 for rank in range(8)],
        }
    )
    if form is as_json:
        told = as_json(crossed, time=at(0)) + as_json(crossed, time=at(1))
    else:
        told = looks((at(0), form(crossed)), (at(1), form(crossed)))
    shown = analyzed(tmp_path, call, told)
    assert alarms(shown) == [("hang.mismatch", [], "critical", "likely")]
    assert (
        "rank 3 launched fewer AllReduce than the others, but more Broadcast"
        in (shown["findings"][0]["title"])
    )


def test_who_waits_in_one_group_is_not_to_blame_in_another(tmp_path: Path, call: Call) -> None:
    """Rank 5 never comes to its pair; rank 4, which waits for it there, is late for all others."""
    world = behind(8, 4, 9, 10)
    world.counts = {"AllReduce": [9 if rank in (4, 5) else 10 for rank in range(8)]}
    pair = Comm({"AllGather": [31, 30]}, hash="beef", places=[4, 5])
    told = as_json(world, pair, time=at(0)) + as_json(world, pair, time=at(1))
    shown = analyzed(tmp_path, call, told)
    assert alarms(shown) == [("hang.missing_rank", [5], "critical", "likely")]


def test_the_rank_with_an_error_of_its_own_is_named_and_not_those_that_lost_their_peer(
    tmp_path: Path, call: Call
) -> None:
    errors = {rank: 1 if rank == 5 else 6 for rank in range(8)}
    for form in (text, as_json):
        shown = analyzed(tmp_path, call, form(even(8, errors=errors)))
        assert alarms(shown) == [("crash.error", [5], "critical", "likely")]
        assert "Unhandled CUDA error" in shown["findings"][0]["title"]
    shown = analyzed(tmp_path, call, text(even(8, errors={2: 6, 3: 6})))
    assert alarms(shown) == [("comm.error", [], "warning", "cannot_tell")]


EVENT = {
    "timestamp": at(3), "group": "LIFECYCLE", "event": "PEER_DEAD",
    "peer": {"host": "10.0.0.1", "pid": 5006, "cuda_devs": [6], "nvml_devs": [6]}, "details": "",
}  # fmt: skip
LINE = f"[{at(3)}] PEER_DEAD: Process 5006 on node 10.0.0.1 managing GPU 6 \n"


@pytest.mark.parametrize(
    "told", [json.dumps(EVENT, indent=2), LINE, f"RAS Monitor Mode - watching\n{'=' * 20}\n{LINE}"]
)
def test_an_event_of_the_monitor_names_the_process(told: str, tmp_path: Path, call: Call) -> None:
    shown = analyzed(tmp_path, call, told)
    assert alarms(shown) == [("crash.vanished", [], "critical", "likely")]
    assert "process 5006 on 10.0.0.1, GPU 6" in shown["findings"][0]["title"]


def test_the_log_of_nccl_tells_which_rank_a_process_is(tmp_path: Path, call: Call) -> None:
    job = ranks(8, 8)
    for rank in job:
        rank.pid = 5000 + rank.rank
        rank.healthy("2.29.2")
    write(tmp_path, job)
    found = alarms(analyzed(tmp_path, call, LINE))
    assert found == [("crash.vanished", [6], "critical", "likely")]


def test_a_new_peer_is_no_event_to_tell_of(tmp_path: Path, call: Call) -> None:
    shown = analyzed(tmp_path, call, LINE.replace("PEER_DEAD", "PEER_NEW"))
    assert alarms(shown) == []


def test_a_start_up_that_does_not_end_accuses_nobody(tmp_path: Path, call: Call) -> None:
    init = Comm({"AllReduce": [0] * 16}, init=range(16))
    told = looks((at(0), text(init)), (at(1), text(init)))
    assert alarms(analyzed(tmp_path, call, told)) == [
        ("hang.missing_rank", [], "critical", "cannot_tell")
    ]


# Bad input


def test_what_is_cut_off_is_named_and_the_rest_is_used(tmp_path: Path, call: Call) -> None:
    report = looks((at(0), text(even(32, gone=[21], dead=True))), (at(1), text(even(32))[:400]))
    shown = analyzed(tmp_path, call, report)
    assert "cut off" in str(shown["coverage"]["skipped"][0])
    whole = as_json(even(8), time=at(0))
    (tmp_path / "look0").write_text(whole + whole[: len(whole) // 2])
    read = read_looks([tmp_path / "look0"])
    assert (len(read.looks), "cut off" in read.skipped[0][1]) == (1, True)


@pytest.mark.parametrize(
    "junk",
    [b"", b"\0" * 87, b"Communicators...", b'{"communicators_count": 1', b"Job summary\n" * 9,
     b'{"communicators_count": 1, "cuda_driver_version": 2, "communicators": [{"ranks": 3}]}',
     b'{"communicators_count": 1, "cuda_driver_version": 2, "communicators": "none"}',
     b"Job summary Communicators... Ranks " + b"1 " * 200_000],
    ids=["nothing", "zeros", "a word", "a beginning", "titles", "no ranks", "no list", "one line"],
)  # fmt: skip
def test_junk_is_named_or_not_taken(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "junk"
    path.write_bytes(junk)
    recognize(junk[: 1 << 16])
    for look in read_looks([path]).looks:
        assert look.told({})["dead"] == []


def test_a_report_among_lines_of_a_training_is_read_and_so_are_these(
    tmp_path: Path, call: Call
) -> None:
    training = "".join(f"RANK 0 10:00:{step:02d}.000 step {step} loss 1.0\n" for step in range(50))
    report = text(even(32, gone=[21], dead=True))
    (tmp_path / "job.log").write_text(training + report)
    assert not NcclRasImporter.alone((training + report).encode())
    assert NcclRasImporter.alone(report.encode())
    shown = json.loads(call("analyze", tmp_path, "--format", "json").out)
    assert ("crash.vanished", [21], "critical", "likely") in alarms(shown)


def test_of_many_answers_the_newest_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "watch.txt"
    path.write_text(text(even(8)) * 2100)
    read = read_looks([path])
    assert len(read.looks) == 2000
    assert "100 older answers" in read.skipped[0][1]
