"""Whether what processes were told of their cluster is whole, equal and true."""

from __future__ import annotations

import pytest

from tests.analysis.telling import HOSTS, found, how, replace_fact, silent, told, verdict, workers
from tracekit.dataset.coverage import Coverage, Duplicate
from tracekit.findings import Certainty, Severity

ID = "config.tf_config"
CLUSTER = {"worker": ["node-0:2222", "node-1:2222"]}


@pytest.mark.parametrize("hosts", [("node-0",), HOSTS])
def test_a_cluster_that_is_whole_and_true_is_no_finding(hosts: tuple[str, ...]) -> None:
    assert silent(workers(hosts=hosts))


def test_a_chief_an_evaluator_and_numbered_tasks_are_no_finding() -> None:
    run = workers(3)
    cluster = {"chief": ["node-0:2222"], "worker": {"0": "node-0:2223"}}
    for rank, (job, index) in enumerate([("chief", 0), ("worker", 0), ("evaluator", 0)]):
        replace_fact(run, "tf_config", rank, told(cluster, index, job))
        replace_fact(run, "strategy", rank, how(2, rank, workers=1 if rank == 2 else 2))
    assert silent(run)


@pytest.mark.parametrize("error", ["not JSON: Expecting value at character 0", "no cluster in it"])
def test_a_text_that_is_no_cluster_is_named_with_its_error(error: str) -> None:
    run = workers()
    replace_fact(
        run, "tf_config", 1, {"valid": False, "error": error, "cluster": None, "task": None}
    )
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.severity) == ((1,), Severity.WARNING)
    assert finding.certainty is Certainty.PROVEN
    assert error in finding.title
    assert 'TF_CONFIG=\'{"cluster"' in finding.advice[0]


def test_it_is_critical_where_the_rank_trains_alone_by_it() -> None:
    run = workers()
    broken = {"valid": False, "error": "not JSON", "cluster": None, "task": None}
    replace_fact(run, "tf_config", 1, broken)
    replace_fact(run, "strategy", 1, how(1, 1))
    finding = found(run, ID)[0]
    assert (finding.severity, finding.evidence["train_alone"]) == (Severity.CRITICAL, [1])


def test_an_index_beyond_the_cluster_is_named() -> None:
    run = workers(hosts=HOSTS)
    replace_fact(run, "tf_config", 1, told(CLUSTER, 2))
    (finding,) = found(run, ID)
    assert finding.ranks == (1,)
    assert "worker 2, and the cluster has 2" in finding.title


def test_two_ranks_with_one_index_are_named_with_who_is_absent() -> None:
    run = workers(hosts=HOSTS)
    replace_fact(run, "tf_config", 1, told(CLUSTER, 0))
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.severity) == ((0, 1), Severity.CRITICAL)
    assert finding.certainty is Certainty.PROVEN
    assert "worker 0" in finding.title
    assert "nobody came as worker 1" in finding.title


def test_two_processes_of_one_rank_while_a_task_is_absent_are_one_index_given_twice() -> None:
    run = workers(3)
    run.facts = [one for one in run.facts if one["rank"] != 1]
    run.spans = [one for one in run.spans if one["rank"] != 1]
    coverage = Coverage(duplicate_ranks=(Duplicate(0, 0, ("rank-0.a-1", "rank-0.b-2")),))
    (finding,) = found(run, ID, coverage)
    assert (finding.ranks, finding.certainty) == ((0,), Certainty.LIKELY)
    assert "nobody came as worker 1" in finding.title


def test_two_processes_of_one_rank_may_be_a_restart_while_nobody_is_absent() -> None:
    coverage = Coverage(duplicate_ranks=(Duplicate(0, 0, ("rank-0.a-1", "rank-0.b-2")),))
    (finding,) = found(workers(), ID, coverage)
    assert (finding.severity, finding.certainty) == (Severity.INFO, Certainty.CANNOT_TELL)


LOOPBACK = ["localhost:1110", "localhost:1111"]


def test_addresses_of_this_machine_for_workers_on_another_are_named() -> None:
    run = workers(steps=0, hosts=HOSTS, addresses=LOOPBACK)
    for rank in range(2):
        run.span(rank, "init", run.now[rank], run.now[rank] + 10, "start")
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.severity) == ((0, 1), Severity.CRITICAL)
    assert "node-0, node-1" in finding.title
    assert "localhost" in finding.title


def test_addresses_of_this_machine_are_right_where_all_workers_are_on_it() -> None:
    assert silent(workers(addresses=LOOPBACK))


def test_a_worker_may_call_itself_localhost() -> None:
    run = workers(hosts=HOSTS)
    replace_fact(run, "tf_config", 0, told({"worker": ["localhost:2222", "node-1:2222"]}, 0))
    replace_fact(run, "tf_config", 1, told({"worker": ["node-0:2222", "127.0.0.1:2222"]}, 1))
    assert silent(run)


def test_addresses_that_lead_somewhere_all_the_same_are_information() -> None:
    """As through a tunnel: two workers train together by them."""
    (finding,) = found(workers(hosts=HOSTS, addresses=LOOPBACK), ID)
    assert (finding.severity, finding.certainty) == (Severity.INFO, Certainty.CANNOT_TELL)


def test_the_rank_with_another_cluster_is_named() -> None:
    run = workers(3)
    cluster = {"worker": ["node-0:2222", "node-0:2222", "elsewhere:2222"]}
    replace_fact(run, "tf_config", 2, told(cluster, 2))
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.certainty) == ((2,), Certainty.PROVEN)
    assert finding.evidence["clusters"]["2"]["worker 2"] == "elsewhere:2222"


def test_of_two_that_differ_nothing_tells_which_is_right() -> None:
    run = workers(steps=0)
    run.span(0, "init", run.now[0], run.now[0] + 10, "start")
    run.span(1, "init", run.now[1], run.now[1] + 10, "start")
    replace_fact(run, "tf_config", 1, told({"worker": [*CLUSTER["worker"], "node-2:2222"]}, 1))
    findings = [one for one in found(run, ID) if "different" in one.title]
    assert [(one.ranks, one.certainty) for one in findings] == [((0, 1), Certainty.CANNOT_TELL)]
    assert "not as many tasks" in findings[0].title


def test_processes_that_know_of_no_cluster_train_alone() -> None:
    run = workers(tell=False, workers=1, replicas=1)
    analysis = verdict(run)
    (finding,) = [one for one in analysis.findings if one.id == ID]
    assert (finding.ranks, finding.certainty) == ((0, 1), Certainty.LIKELY)
    assert "2 processes were started together" in finding.title
    assert analysis.symptom == "abnormal"


def test_one_process_needs_no_cluster() -> None:
    run = workers(1, tell=False)
    run.spans = [one for one in run.spans if one["kind"] != "comm"]
    assert silent(run)
