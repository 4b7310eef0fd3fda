"""Who is waited for, by dumps of Flight Recorder alone."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.adapters.flight_recorder.samples import NOW, Job, entry, hangs, verdict

ALL = {"0": (0, 1, 2, 3)}
USER = [
    ("/opt/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3245, "x"),
    ("/home/me/train.py", 77, "step"),
    ("/home/me/train.py", 9, "main"),
]


def calls(last: int, *, open_: bool, **more: object) -> list[dict[str, object]]:
    done = [entry(seq) for seq in range(last - 20, last)]
    return [*done, entry(last, state="started" if open_ else "completed", frames=USER, **more)]  # type: ignore[arg-type]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_whose_calls_end_before_the_others_is_named(tmp_path: Path, as_json: bool) -> None:
    job = Job(tmp_path, ALL)
    for rank in (0, 1, 3):
        job.dump(rank, calls(101, open_=True), as_json=as_json)
    job.dump(2, calls(100, open_=False), as_json=as_json)
    analysis = verdict(tmp_path)
    assert analysis.symptom == "hang"
    assert hangs(analysis) == [("hang.missing_rank", (2,), "likely")]
    finding = analysis.findings[0]
    assert finding.evidence["collective"]["seq"] == 101
    assert finding.evidence["waiting_ranks"] == [0, 1, 3]
    assert finding.evidence["last_enqueued"] == 100
    assert finding.evidence["waiting_since_ns"] == NOW + 101_000
    if not as_json:  # JSON has no stacks
        assert finding.evidence["last_frames"] == {"2": "/home/me/train.py:77 step"}
        assert finding.evidence["waiting_frame"] == "/home/me/train.py:77 step"


def test_two_dumps_in_which_nothing_moved_are_proof(tmp_path: Path) -> None:
    for look, after in (("a", 10), ("b", 70)):
        job = Job(tmp_path / look, ALL)
        for rank in (0, 1, 3):
            job.dump(rank, calls(101, open_=True), after_s=after)
        job.dump(2, calls(100, open_=False), after_s=after)
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (2,), "proven")]


def test_a_rank_that_moved_between_two_dumps_is_not_proven_stuck(tmp_path: Path) -> None:
    for look, last in (("a", 100), ("b", 150)):
        job = Job(tmp_path / look, ALL)
        for rank in (0, 1, 3):
            job.dump(rank, calls(last + 1, open_=True))
        job.dump(2, calls(last, open_=False))
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (2,), "likely")]


def test_of_a_rank_without_a_dump_nothing_is_said(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in (0, 2, 3):
        job.dump(rank, calls(10, open_=True))
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (), "cannot_tell")]
    finding = analysis.findings[0]
    assert finding.title.startswith("no dump of rank 1: cannot tell")
    assert finding.evidence["candidates"] == [1]


def test_one_dump_alone_accuses_nobody(tmp_path: Path) -> None:
    Job(tmp_path, ALL).dump(0, calls(10, open_=True))
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (), "cannot_tell")]


def test_a_dump_without_any_call_is_not_a_rank_that_made_none(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in (0, 1, 3):
        job.dump(rank, calls(10, open_=True))
    job.dump(2)
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (), "cannot_tell")]
    assert "the dumps of rank 2 do not tell" in analysis.findings[0].title


def test_a_dump_from_before_the_others_came_accuses_nobody(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in (0, 1, 3):
        job.dump(rank, calls(10, open_=True))
    job.dump(2, [entry(9, at=NOW - 60 * 10**9)], after_s=-50)
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (), "cannot_tell")]


def test_batches_of_messages_are_not_taken_for_collectives(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    job.dump(0, [entry(5), entry(90, "coalesced", message=True, state="started")])
    job.dump(1, [entry(5), entry(70, "coalesced", message=True, state="started")])
    assert hangs(verdict(tmp_path)) == []


def test_dumps_of_a_job_at_work_accuse_nobody(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        last = 100 + rank % 2
        job.dump(rank, calls(last, open_=True), after_s=0.2)
    analysis = verdict(tmp_path)
    assert hangs(analysis) == []
    assert analysis.symptom == "healthy"


def test_a_victim_that_waits_elsewhere_is_not_the_culprit(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3)})
    one, two = ("1", "GROUP_1"), ("2", "GROUP_2")
    old = [entry(5), entry(7, group=one), entry(7, group=two)]
    job.dump(0, [*old, entry(6, state="started")])
    job.dump(1, [*old, entry(6, state="started")])
    job.dump(2, [*old, entry(8, group=two, state="started")])  # waits for 3, so never comes to 6
    job.dump(3, old)
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (3,), "likely")]


def test_ranks_that_wait_for_each_other_are_a_circle(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1), "1": (0, 1)})
    other = ("1", "GROUP_1")
    old = [entry(5), entry(5, group=other)]
    job.dump(0, [*old, entry(6, state="started")])
    job.dump(1, [*old, entry(6, group=other, state="started")])
    assert hangs(verdict(tmp_path)) == [("hang.cycle", (0, 1), "likely")]


def test_a_device_that_does_not_end_what_others_ended_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in (0, 1, 2):
        job.dump(rank, [*calls(100, open_=False), entry(101, state="scheduled")])
    job.dump(3, [*calls(98, open_=False), *(entry(s, state="scheduled") for s in (99, 100, 101))])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (3,), "likely")]
    assert "the device of rank 3 does not get ahead" in analysis.findings[0].title


def test_different_calls_of_one_number_are_a_mismatch_and_nothing_else(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        op = "broadcast" if rank == 2 else "all_reduce"
        job.dump(rank, [entry(6), entry(7, op, state="started")])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.mismatch", (2,), "proven")]
    assert "rank 2 in broadcast of 8 float32" in analysis.findings[0].title


@pytest.mark.parametrize("change", [{"sizes": [[9]]}, {"dtype": "Half"}])
def test_different_sizes_and_types_are_a_mismatch(
    tmp_path: Path, change: dict[str, object]
) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        more = change if rank == 1 else {}
        job.dump(rank, [entry(6), entry(7, state="started", **more)])  # type: ignore[arg-type]
    assert hangs(verdict(tmp_path)) == [("hang.mismatch", (1,), "proven")]


def test_operations_that_may_differ_in_size_do(tmp_path: Path) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        job.dump(rank, [entry(6, "all_to_all", sizes=[[rank + 1]])], status={"0": (6, 6)})
    assert hangs(verdict(tmp_path)) == []


def test_numbers_that_one_rank_has_overwritten_are_not_missing(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    job.dump(0, [entry(seq) for seq in range(50, 101)])
    job.dump(1, [entry(seq) for seq in range(70, 101)])
    assert hangs(verdict(tmp_path)) == []


def test_groups_of_one_name_and_other_members_are_kept_apart(tmp_path: Path) -> None:
    group = ("7", "GROUP_7")
    for ranks in ((0, 2), (1, 3)):
        job = Job(tmp_path, {"0": (0, 1, 2, 3), "7": ranks})
        for rank in ranks:
            job.dump(rank, [entry(5 + ranks[0], group=group), entry(3)])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == []
    assert analysis.run.ranks == (0, 1, 2, 3)


def test_numbers_of_messages_are_not_compared_with_those_of_others(tmp_path: Path) -> None:
    """Ranks of a pipeline send and receive unequally often, and the status counts that too."""
    job = Job(tmp_path, {"0": (0, 1, 2, 3)})
    status = {0: 90, 1: 70, 2: 95, 3: 60}
    for rank in range(4):
        sent = entry(status[rank], f"send {rank}->{(rank + 1) % 4}", message=True)
        job.dump(
            rank, [entry(5), sent, entry(6, state="started")], status={"0": (status[rank],) * 2}
        )
    assert [one for one in hangs(verdict(tmp_path)) if one[1]] == []


def test_a_rank_that_all_messages_wait_for_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    job.dump(0, [entry(5), entry(9, "recv 0<-1", message=True, state="started")])
    job.dump(1, [entry(5)])
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (1,), "likely")]


def test_behind_who_is_missing_messages_lead_to_the_rank_that_sends_nothing(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, {"0": (0, 1, 2)})
    job.dump(0, [entry(5), entry(6, state="started")])
    job.dump(1, [entry(5), entry(9, "recv 1<-2", message=True, state="started")])
    job.dump(2, [entry(5)])
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (2,), "likely")]


def test_a_message_with_a_rank_without_a_dump_is_no_circle(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1, 2), "1": (0, 1)})
    group = ("1", "GROUP_1")
    job.dump(0, [entry(5, group=group), entry(6, group=group, state="started")])
    recv = entry(9, "recv 1<-2", message=True, state="started")
    job.dump(1, [entry(5, group=group), recv])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (), "cannot_tell")]
    assert "no dump of rank 2" in analysis.findings[0].title


def test_of_gloo_only_what_was_entered_counts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(3):
        done = [entry(seq, backend="gloo", record_id=seq - 1) for seq in (1, 2, 3)]
        wait = [entry(4, backend="gloo", state="started", record_id=3)] if rank != 1 else []
        # gloo's status counts messages to one of its numbers: it must not speak.
        job.dump(rank, [*done, *wait], status={"0": (7 + rank, 3)})
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (1,), "likely")]


def old(seq: int, *, group: int = 0, is_open: bool = False, op: str = "all_reduce") -> object:
    """An entry as the first versions have it: groups by their number on the rank alone."""
    return {
        "pg_id": group, "seq_id": seq, "profiling_name": f"nccl:{op}",
        "time_created_us": NOW // 1000 + seq, "input_sizes": [[4]], "output_sizes": [[4]],
        "state": "scheduled" if is_open else "completed", "frames": [], "retired": False,
    }  # fmt: skip


def write(folder: Path, rank: int, *entries: object) -> None:
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps([*entries], 2))


def test_the_oldest_versions_are_read(tmp_path: Path) -> None:
    for rank in range(3):
        last = [] if rank == 2 else [old(4, is_open=True)]
        write(tmp_path, rank, old(2), old(3), *last)
    assert hangs(verdict(tmp_path)) == [("hang.missing_rank", (2,), "likely")]


def test_groups_that_only_have_a_number_on_each_rank_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, 0, old(3), old(4, is_open=True))
    write(tmp_path, 1, old(3), old(4, is_open=True))
    write(tmp_path, 2, old(3), old(9, group=1, is_open=True, op="broadcast"))
    write(tmp_path, 3, old(3), old(4, is_open=True), old(9, group=1))
    assert [one for one in hangs(verdict(tmp_path)) if one[1] == (2,)] == []


def test_a_ring_in_which_everybody_receives_first_is_a_circle_without_a_culprit(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, ALL)
    for rank in range(4):
        recv = entry(9, f"recv {rank}<-{(rank - 1) % 4}", message=True, state="started")
        job.dump(rank, [entry(5), recv])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.cycle", (0, 1, 2, 3), "likely")]
    assert analysis.symptom == "hang"


def test_messages_that_both_sides_have_posted_are_no_circle(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    job.dump(0, [entry(5), entry(9, "recv 0<-1", message=True, state="started")])
    job.dump(1, [entry(5), entry(9, "send 1->0", message=True, state="started")])
    assert [one for one in hangs(verdict(tmp_path)) if one[0] == "hang.cycle"] == []


def test_a_rank_alone_in_a_call_too_many_accuses_nobody_of_not_coming(tmp_path: Path) -> None:
    """One rank saved, with a barrier, and its barriers are off by one from there on."""
    job = Job(tmp_path, ALL)
    for rank in range(4):
        more = [entry(501, "barrier", state="started", frames=USER)] if rank == 0 else []
        job.dump(rank, [entry(499), entry(500, "barrier"), *more])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (0,), "cannot_tell")]
    assert "one call more than ranks 1-3" in analysis.findings[0].title
    assert not any(one.id.startswith("crash") for one in analysis.findings)


def test_another_size_of_a_broadcast_is_a_mismatch_and_not_the_network(tmp_path: Path) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    for rank, size in enumerate((256, 128)):
        last = entry(40, "broadcast", sizes=[[size]], state="started")
        job.dump(rank, [entry(39, "broadcast"), last])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.mismatch", (0, 1), "proven")]
    assert "256" in analysis.findings[0].title
    assert "128" in analysis.findings[0].title
    assert not any(one.id.startswith("comm.") for one in analysis.findings)


def test_after_an_overwritten_beginning_the_rank_that_lacks_the_last_call_is_named(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, {"0": (0, 1)})
    job.dump(0, [*(entry(seq) for seq in range(50, 100)), entry(100, state="started")])
    job.dump(1, [entry(seq) for seq in range(70, 100)])
    analysis = verdict(tmp_path)
    assert hangs(analysis) == [("hang.missing_rank", (1,), "likely")]
    assert analysis.findings[0].evidence["collective"]["seq"] == 100
