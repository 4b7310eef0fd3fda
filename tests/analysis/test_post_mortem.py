"""Hangs and crashes: the cause is named, effects are not, states are told apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tracekit.analysis import Analysis, analyze
from tracekit.findings import Certainty, Finding, Severity
from tracekit.testing import RunBuilder

KILLED = {"state": "signal", "signal": 9, "source": "launcher"}
TERMINATED = {"state": "signal", "signal": 15, "source": "launcher"}
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1 _call_impl"


def trained(steps: int = 30, **options: float) -> RunBuilder:
    run = RunBuilder(jitter=0.05)
    run.steps(steps)
    return run


def verdict(run: RunBuilder) -> Analysis:
    with run.engine() as engine:
        return analyze(engine)


def first(analysis: Analysis) -> Finding:
    return analysis.findings[0]


def test_the_rank_that_never_came_is_named_with_its_user_frame() -> None:
    run = trained()
    run.hang(3, stack=(TORCH, "/job/model.py:17 gate", "/job/train.py:80 main"))
    analysis = verdict(run)
    assert (analysis.symptom, analysis.phase) == ("hang", "training")
    finding = first(analysis)
    assert (finding.id, finding.ranks) == ("hang.missing_rank", (3,))
    assert finding.certainty is Certainty.PROVEN
    evidence = finding.evidence
    assert evidence["waiting_ranks"] == [0, 1, 2]
    assert evidence["inside"] == "forward"
    assert evidence["user_frame"] == "/job/model.py:17 gate"
    assert evidence["state"] == "stuck"
    assert evidence["collective"]["op"] == "all_reduce"
    assert evidence["since_ns"] == max(
        span["start_ns"] for span in run.spans if span["rank"] == 3 and span["kind"] == "forward"
    )
    assert finding.lost_ms == pytest.approx(30_000, rel=0.01)
    assert "rank 3" in str(analysis.questions.lagging)


@pytest.mark.parametrize(
    ("options", "id_", "state"),
    [
        ({"state": "T"}, "hang.stopped", "stopped"),
        ({"heartbeat_stops": True}, "hang.gil", "gil"),
        ({"state": "D"}, "hang.missing_rank", "disk"),
        ({"second_stack": ("/job/train.py:43 other",)}, "hang.busy_rank", "slow"),
        ({"kind": "data"}, "hang.missing_rank", "stuck"),
        ({"looks": False, "kind": "checkpoint"}, "hang.busy_rank", "unknown"),
    ],
)
def test_what_keeps_a_rank_is_told_apart(options: dict[str, object], id_: str, state: str) -> None:
    run = trained()
    run.hang(1, **options)  # type: ignore[arg-type]
    finding = first(verdict(run))
    assert (finding.id, finding.ranks, finding.evidence["state"]) == (id_, (1,), state)


def test_a_job_that_was_ended_while_it_hung_still_hung() -> None:
    run = trained()
    run.hang(2)
    run.facts = [fact for fact in run.facts if fact["name"] != "end_state"]
    for rank in range(4):
        run.fact("end_state", TERMINATED, rank, time_ns=run.now[rank])
    analysis = verdict(run)
    assert analysis.symptom == "hang"
    assert first(analysis).ranks == (2,)


def test_a_rank_that_was_seen_alive_did_not_die_when_its_heart_stopped() -> None:
    """A held interpreter stops the heartbeat; the agent's look at the process comes later."""
    run = trained()
    run.hang(2, heartbeat_stops=True)
    run.facts = [fact for fact in run.facts if fact["name"] != "end_state"]
    for rank in range(4):
        run.fact("end_state", {"state": "vanished"}, rank)
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("hang.gil", (2,))


def test_a_running_job_in_a_collective_is_no_hang() -> None:
    run = trained()
    run.hang(2, seconds=0.1, looks=False)
    assert verdict(run).symptom == "healthy"


def test_ranks_in_different_collectives_of_one_group_are_a_mismatch() -> None:
    run = trained()
    start, end = run.now[0], run.now[0] + 60_000_000_000
    for rank, op in enumerate(("all_reduce", "all_reduce", "all_gather", "all_reduce")):
        run.span(rank, "step", start, end, "train_step", 30, is_open=True)
        run.collective(rank, op, 31, start + 1000, end, step=30, is_open=True)
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("hang.mismatch", (2,))
    assert "rank 2 in all_gather 31" in finding.title


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_cycle() -> None:
    run = trained()
    start, end = run.now[0], run.now[0] + 60_000_000_000
    run.fact("group", {"id": "g1", "ranks": [0, 1]}, 0)
    run.fact("group", {"id": "g2", "ranks": [0, 1]}, 0)
    for rank in (0, 1):
        run.span(rank, "step", start, end, "train_step", 30, is_open=True)
        run.collective(
            rank, "all_reduce", 1, start + 1000, end, group=f"g{rank + 1}", group_size=2,
            step=30, is_open=True,
        )  # fmt: skip
    finding = first(verdict(run))
    assert finding.id == "hang.cycle"


def test_who_waits_for_a_rank_that_waits_for_another_is_not_named() -> None:
    """Rank 3 waits in the broadcast for rank 2, who is late; ranks 0 and 1 are further."""
    run = trained()
    start, end = run.now[0], run.now[0] + 60_000_000_000
    for rank in range(4):
        run.span(rank, "step", start, end, "train_step", 30, is_open=True)
    for rank in (0, 1):
        run.collective(rank, "broadcast", 31, start, start + 5000, step=30, peer_rank=0)
        run.collective(rank, "all_reduce", 31, start + 9000, end, step=30, is_open=True)
    run.collective(3, "broadcast", 31, start, end, step=30, peer_rank=0, is_open=True)
    run.span(2, "data", start, end, "data_wait", 30, is_open=True)
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("hang.busy_rank", (2,))


def test_a_call_that_goes_on_beside_the_work_is_not_what_a_rank_waits_in() -> None:
    """All have started an asynchronous all-reduce; rank 2 waits for a batch, the others for it."""
    run = trained()
    start, end = run.now[0], run.now[0] + 60_000_000_000
    for rank in range(4):
        run.span(rank, "step", start, end, "train_step", 30, is_open=True)
        run.collective(
            rank, "all_reduce", 31, start, end, step=30, lane=f"group:{run.group}", is_open=True
        )
        if rank != 2:
            run.collective(rank, "barrier", 32, start + 9000, end, step=30, is_open=True)
    run.span(2, "data", start + 9000, end, "data_wait", 30, is_open=True)
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("hang.busy_rank", (2,))
    assert "barrier 32" in finding.title


def test_a_rank_that_never_starts_the_call_others_wait_for_is_missing() -> None:
    run = trained()
    start, end = run.now[0], run.now[0] + 60_000_000_000
    for rank in range(4):
        run.span(rank, "step", start, end, "train_step", 30, is_open=True)
        if rank != 1:
            run.collective(
                rank, "all_reduce", 31, start, end, step=30, lane=f"group:{run.group}", is_open=True
            )
            run.collective(
                rank, "all_reduce", 31, start + 9000, end, name="wait", step=30, is_open=True
            )
    finding = first(verdict(run))
    assert finding.ranks == (1,)
    assert finding.id.startswith("hang.")


def test_a_receive_waits_for_its_sender_and_for_nobody_else() -> None:
    run = trained()
    start, end = run.now[0], run.now[0] + 60_000_000_000
    for rank in range(4):
        run.span(rank, "step", start, end, "train_step", 30, is_open=True)
    run.collective(3, "recv", 7, start + 9000, end, peer_rank=1, step=30, is_open=True)
    run.span(1, "forward", start, end, "forward", 30, is_open=True)
    finding = first(verdict(run))
    assert finding.ranks == (1,)
    assert "recv from rank 1" in finding.title


def test_a_hang_before_the_first_step_is_in_start_up() -> None:
    run = RunBuilder()
    end = run.now[0] + 120_000_000_000
    for rank in (0, 1, 3):
        run.collective(rank, "all_gather", 1, run.now[rank], end, is_open=True)
    run.span(2, "init", run.now[2], end, "init", is_open=True)
    analysis = verdict(run)
    assert (analysis.symptom, analysis.phase) == ("hang", "startup")
    assert first(analysis).ranks == (2,)


def test_a_hang_after_the_last_step_is_in_teardown() -> None:
    run = trained()
    end = run.now[0] + 120_000_000_000
    for rank in (1, 2, 3):
        run.collective(rank, "barrier", 1, run.now[rank], end, is_open=True)
    run.span(0, "checkpoint", run.now[0], end, "torch.save", is_open=True)
    analysis = verdict(run)
    assert (analysis.symptom, analysis.phase) == ("hang", "teardown")
    assert (first(analysis).id, first(analysis).ranks) == ("hang.busy_rank", (0,))


def test_a_killed_rank_is_the_cause_and_those_that_follow_are_victims() -> None:
    run = trained()
    run.die(1, end_state=KILLED, others=TERMINATED)
    analysis = verdict(run)
    assert (analysis.symptom, analysis.phase) == ("crash", "training")
    finding = first(analysis)
    assert (finding.id, finding.ranks) == ("crash.killed", (1,))
    assert finding.certainty is Certainty.PROVEN
    assert finding.evidence["signal"] == 9
    assert finding.evidence["source"] == "launcher"
    assert finding.evidence["inside"] == "forward"
    assert finding.evidence["last_span"] == "data_wait"
    assert finding.evidence["victims"] == [0, 2, 3]


@pytest.mark.parametrize(("signal", "word"), [(9, "who killed"), (6, "stderr"), (11, "stderr")])
def test_who_fails_by_itself_is_asked_itself_and_else_who_killed_it(signal: int, word: str) -> None:
    run = trained()
    run.die(1, end_state={**KILLED, "signal": signal}, others=TERMINATED)
    finding = first(verdict(run))
    assert (finding.id, finding.evidence["signal"]) == ("crash.killed", signal)
    assert word in str(finding.advice[0])


def test_of_those_that_vanished_the_one_that_did_not_wait_is_named_whoever_was_seen_last() -> None:
    run = trained()
    run.die(1, others={"state": "exit", "code": 1})
    for fact in run.facts:
        if fact["rank"] == 3 and fact["name"] == "end_state":
            fact.update(value='{"state": "vanished"}', time_ns=None)
        elif fact["rank"] == 3 and fact["name"] == "heartbeat":
            fact["value"] = str(run.now[1] - 900_000_000)
    for row in run.spans:
        if row["rank"] == 3 and row["is_open"]:
            row["duration_ns"] = min(row["duration_ns"], run.now[1] - 500_000 - row["start_ns"])
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("crash.vanished", (1,))


def test_without_the_launcher_s_word_a_rank_has_vanished() -> None:
    run = trained()
    run.die(1, others={"state": "exit", "code": 1})
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("crash.vanished", (1,))
    assert finding.certainty is Certainty.CANNOT_TELL


@pytest.mark.parametrize(
    "message",
    [
        "[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1",
        "NCCL communicator was aborted on rank 2",
        "Socket Timeout",
    ],
)
def test_who_lost_its_peer_is_never_the_cause(message: str) -> None:
    run = trained()
    lost = {"state": "exception", "type": "RuntimeError", "message": message}
    run.die(1, end_state={"state": "vanished"}, others=lost)
    # the victims' words may well be written before anybody sees that rank 1 is gone
    for fact in run.facts:
        if fact["name"] == "end_state" and fact["rank"] != 1:
            fact["time_ns"] -= 1_500_000_000
    assert first(verdict(run)).ranks == (1,)


def test_the_first_error_is_the_cause() -> None:
    run = trained()
    error = {"state": "exception", "type": "ValueError", "message": "bad batch", "frame": "a.py:1"}
    run.die(2, end_state=error, others=TERMINATED)
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("crash.error", (2,))
    assert "ValueError: bad batch" in finding.title


def test_ranks_that_raise_the_same_are_no_victims_of_each_other() -> None:
    run = trained()
    error = {"state": "exception", "type": "ValueError", "message": "bad batch", "frame": "a.py:1"}
    run.die(2, end_state=error, others=error)
    finding = first(verdict(run))
    assert (finding.id, finding.ranks) == ("crash.error", (0, 1, 2, 3))
    assert (finding.evidence["alike_ranks"], finding.evidence["victims"]) == ([0, 1, 3], [])
    assert "because of it" not in str(finding.title)
    assert "ranks 0-1, 3 ended in the same way" in str(finding.title)


def test_another_error_beside_the_first_is_an_effect() -> None:
    run = trained()
    error = {"state": "exception", "type": "ValueError", "message": "bad batch", "frame": "a.py:1"}
    run.die(2, end_state=error, others={**error, "message": "another"})
    finding = first(verdict(run))
    assert finding.evidence["alike_ranks"] == []
    assert finding.evidence["victims"] == [0, 1, 3]


def test_who_ends_with_the_code_of_the_first_is_not_told_to_follow_from_it() -> None:
    run = trained()
    run.die(2, end_state={"state": "exit", "code": 3}, others={"state": "exit", "code": 3})
    finding = first(verdict(run))
    assert len(finding.ranks) == 1
    assert len(finding.evidence["alike_ranks"]) == 3
    assert "because of it" not in str(finding.title)


def test_out_of_memory_is_a_symptom_of_its_own() -> None:
    run = trained()
    error = {"state": "exception", "type": "OutOfMemoryError", "message": "CUDA out of memory"}
    run.die(0, end_state=error, others=TERMINATED)
    analysis = verdict(run)
    assert analysis.symptom == "oom"
    assert first(analysis).id == "crash.oom"


def test_a_job_that_somebody_ended_has_no_culprit() -> None:
    run = trained()
    for rank in range(4):
        run.fact("end_state", TERMINATED, rank, time_ns=run.now[rank])
    finding = first(verdict(run))
    assert (finding.id, finding.severity) == ("crash.killed", Severity.WARNING)
    assert "from outside" in finding.title


def test_a_clean_end_is_no_crash() -> None:
    run = trained()
    run.end_cleanly()
    assert verdict(run).symptom == "healthy"


def broken(
    sizes: Sequence[int], op: str = "all_reduce", dtypes: Sequence[str | None] = ("float32",) * 4
) -> Finding:
    """The first finding where ranks ended with an error in a call with these sizes."""
    run = trained()
    start = run.now[0]
    error = {"state": "exception", "type": "RuntimeError", "message": "no"}
    for rank, size in enumerate(sizes):
        run.span(rank, "step", start, start + 9000, "train_step", 30)
        run.collective(
            rank, op, 31, start + 1000, start + 5000, step=30, nbytes=size, status="error"
        )
        run.spans[-1]["collective_dtype"] = dtypes[rank]
        run.fact("end_state", error, rank, time_ns=start + 9000)
    return first(verdict(run))


def test_who_brought_another_size_into_a_call_that_failed_is_named() -> None:
    found = broken((64, 64, 4096, 64))
    assert (found.id, found.ranks, found.certainty) == ("hang.mismatch", (2,), Certainty.PROVEN)
    assert "rank 2 in all_reduce of 4,096 bytes" in found.title


def test_equal_unknown_or_rightly_different_sizes_accuse_nobody() -> None:
    for sizes, op in (((64,) * 4, "all_reduce"), ((64, 0, 4096, 64), "all_reduce"),
                      ((64, 64, 4096, 64), "all_to_all")):  # fmt: skip
        assert broken(sizes, op).id != "hang.mismatch"


def test_a_type_that_one_rank_did_not_record_is_no_other_type() -> None:
    assert broken((64,) * 4, dtypes=("float32", None, "float32", None)).id != "hang.mismatch"
    found = broken((64, 64, 4096, 64), dtypes=("float32", None, "float32", None))
    assert (found.id, found.ranks) == ("hang.mismatch", (2,))
    found = broken((64,) * 4, dtypes=("float32", "float32", "float16", "float32"))
    assert (found.id, found.ranks) == ("hang.mismatch", (2,))
