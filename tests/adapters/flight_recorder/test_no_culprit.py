"""Hangs for which no rank can be blamed: what dumps show of them instead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.flight_recorder.samples import Job, entry, hangs, verdict

SAVE = [("/home/me/save.py", 31, "save_checkpoint"), ("/home/me/train.py", 9, "main")]
FINAL = [("/home/me/train.py", 90, "finalize"), ("/home/me/train.py", 9, "main")]
EIGHT = {"0": tuple(range(8))}


def barrier(seq: int, frames: Any, state: str = "completed") -> dict[str, Any]:
    return entry(seq, "barrier", state=state, frames=frames)


def one_too_many(folder: Path, saves_on: Sequence[int], *, as_json: bool = False) -> None:
    """Rank 0 is in a barrier that nobody comes to; some ranks had one of a save before."""
    job = Job(folder, {"0": (0, 1, 2, 3)})
    for rank in range(4):
        before = barrier(500, SAVE if rank in saves_on else FINAL)
        more = [barrier(501, FINAL, "started")] if rank == 0 else []
        job.dump(rank, [entry(499), before, *more], as_json=as_json)


def test_where_the_code_of_a_rank_with_a_call_too_many_parted_is_told(tmp_path: Path) -> None:
    one_too_many(tmp_path, [0])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (0,), "cannot_tell")]
    finding = analysis.findings[0]
    assert finding.evidence["call_sites"] == {
        "seq": 500,
        "own": "/home/me/save.py:31 save_checkpoint",
        "others": "/home/me/train.py:90 finalize",
    }
    assert "parted at call 500" in finding.title
    assert not any(one.id.startswith("crash") for one in analysis.findings)


@pytest.mark.parametrize("saves_on", [[], [0, 1, 2, 3], [0, 2]])
def test_code_that_is_not_known_to_have_parted_is_not_said_to(
    tmp_path: Path, saves_on: list[int]
) -> None:
    """All of them called it from one place, or the others are not of one mind."""
    one_too_many(tmp_path, saves_on)
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (0,), "cannot_tell")]
    assert "call_sites" not in analysis.findings[0].evidence


def test_dumps_without_stacks_say_nothing_of_where_code_parted(tmp_path: Path) -> None:
    one_too_many(tmp_path, [0], as_json=True)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("frames", "unknown"))
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (0,), "cannot_tell")]
    assert "call_sites" not in analysis.findings[0].evidence


def exchange(
    folder: Path, sent: Sequence[list[list[int]]], received: Sequence[list[list[int]]]
) -> None:
    """All ranks are in an all_to_all with tensors of these shapes."""
    job = Job(folder, {"0": tuple(range(len(sent)))})
    for rank, (gives, gets) in enumerate(zip(sent, received, strict=True)):
        last = entry(7, "all_to_all", state="started", sizes=gives, output_sizes=gets)
        job.dump(rank, [entry(6), last])


def test_an_exchange_in_which_sums_do_not_fit_accuses_nobody(tmp_path: Path) -> None:
    """18 rows over 8 ranks: the last two have none, the others expect some of them."""
    rows = [3] * 6 + [0] * 2
    exchange(tmp_path, [[[n, 4]] if n else [] for n in rows], [[[3, 4]]] * 8)
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.mismatch", tuple(range(8)), "proven")]
    finding = analysis.findings[0]
    assert "72 numbers are sent and 96 expected in all; ranks 6-7 send nothing" in finding.title
    assert finding.evidence["class"] == "sizes"
    assert not any(one.id.startswith("comm.") for one in analysis.findings)


def test_of_an_exchange_by_pairs_those_that_do_not_fit_are_told(tmp_path: Path) -> None:
    sent = [[[2], [2], [2]], [[2], [2], [5]], [[2], [2], [2]]]
    received = [[[2], [2], [2]]] * 3
    exchange(tmp_path, sent, received)
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.mismatch", (1, 2), "proven")]
    finding = analysis.findings[0]
    assert "rank 1 sends 5 numbers to rank 2, which expects 2" in finding.title
    assert finding.evidence["pairs"] == [{"from": 1, "to": 2, "sent": 5, "expected": 2}]


@pytest.mark.parametrize("alike", [True, False])
def test_an_exchange_that_fits_is_no_mismatch_however_uneven(tmp_path: Path, alike: bool) -> None:
    rows = [3] * 6 + [0] * 2
    sent = [[[n, 4]] if n else [] for n in rows]
    exchange(tmp_path, sent, sent if alike else sent[::-1])
    assert [one for one in hangs(verdict(tmp_path)) if one[0] == "hang.mismatch"] == []


def test_an_exchange_that_some_have_not_come_to_is_about_who_is_missing(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1, 2)})
    for rank in range(3):
        last = entry(7, "all_to_all", state="started", sizes=[[5]], output_sizes=[[4]])
        job.dump(rank, [entry(6), *([last] if rank else [])])
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (0,), "likely")]


def test_calls_that_share_a_number_are_not_put_against_each_other(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    for rank in range(2):
        halves = [
            entry(7, "all_to_all", state="started", sizes=[[size]], output_sizes=[[10 - size]])
            for size in ((4, 6) if rank else (6, 4))
        ]
        job.dump(rank, [entry(6), *halves])
    assert [one for one in hangs(verdict(tmp_path)) if one[0] == "hang.mismatch"] == []
