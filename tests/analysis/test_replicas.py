"""Who trains together, and who should."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.telling import HOSTS, found, how, replace_fact, silent, verdict, workers
from tracekit.dataset.coverage import Coverage, Duplicate
from tracekit.findings import Certainty, Severity
from tracekit.testing import RunBuilder

ID = "config.strategy"
PER_REPLICA = (
    "Attempt to convert a value (PerReplica:{0: 1, 1: 2}) with an unsupported type"
    " (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor."
)


@pytest.mark.parametrize("name", ["MirroredStrategy", "_DefaultDistributionStrategy"])
def test_a_strategy_of_one_worker_where_the_cluster_names_two_is_critical(name: str) -> None:
    run = workers(workers=1, replicas=1, name=name)
    (finding,) = found(run, ID)
    assert (finding.ranks, finding.severity) == ((0, 1), Severity.CRITICAL)
    assert (finding.evidence["workers"], finding.evidence["workers_named"]) == (1, 2)
    assert name in finding.title
    assert "MultiWorkerMirroredStrategy()" in finding.advice[0]


def test_only_the_worker_that_trains_alone_is_named() -> None:
    run = workers()
    replace_fact(run, "strategy", 1, how(2, 1, workers=1, replicas=1))
    (finding,) = found(run, ID)
    assert finding.ranks == (1,)


def test_a_second_strategy_for_evaluation_is_no_finding() -> None:
    run = workers()
    run.fact("strategy", how(2, 1, workers=1, replicas=1, name="MirroredStrategy"), 1)
    assert silent(run)


def test_workers_that_are_served_parameters_are_no_replicas_of_each_other() -> None:
    run = workers(workers=1, replicas=1, name="ParameterServerStrategyV2")
    assert found(run, ID) == []


def trained_apart(steps: int = 25, model: str = "Net") -> RunBuilder:
    """Two ranks that train and never communicate."""
    run = RunBuilder(world_size=2, jitter=0.05)
    run.steps(steps)
    run.spans = [one for one in run.spans if one["kind"] != "comm"]
    run.facts = [one for one in run.facts if one["name"] != "group"]
    for rank in range(2):
        run.fact("model", {"class": "Net" if rank else model, "parameters": 100}, rank)
    return run


def test_ranks_that_train_one_model_and_never_communicate_are_told() -> None:
    (finding,) = found(trained_apart(), ID)
    assert (finding.ranks, finding.certainty) == ((0, 1), Certainty.LIKELY)


def test_ranks_with_models_of_their_own_need_not_communicate() -> None:
    assert found(trained_apart(model="Other"), ID) == []


def test_too_few_steps_tell_nothing() -> None:
    assert found(trained_apart(steps=10), ID) == []


def test_processes_that_each_believe_to_be_the_only_rank_are_told() -> None:
    run = RunBuilder(world_size=1)
    run.steps(25)
    coverage = Coverage(duplicate_ranks=(Duplicate(0, 0, tuple("abcd")),))
    (finding,) = found(run, ID, coverage)
    assert "4 processes" in finding.title
    assert found(run, ID) == []
    run = RunBuilder(world_size=2)
    run.steps(25)
    assert found(run, ID, coverage) == []


def gpus(visible: int, used: int) -> dict[str, Any]:
    devices = [f"/device:GPU:{i}" for i in range(used)] or ["/device:CPU:0"]
    counts = {"CPU": 1, "GPU": visible}
    return {"devices": devices, "visible_devices": counts, "local_replicas": max(used, 1)}


def test_accelerators_without_a_replica_are_told() -> None:
    (finding,) = found(workers(hosts=HOSTS, **gpus(4, 0)), ID)[:1]
    assert "on the CPU of node-0" in finding.title
    findings = found(workers(hosts=HOSTS, **gpus(4, 1)), ID)
    assert [one.ranks for one in findings] == [(0,), (1,)]
    assert "1 of the 4 accelerators" in findings[0].title
    assert findings[0].severity is Severity.WARNING


def test_accelerators_that_are_all_in_use_are_no_finding() -> None:
    assert silent(workers(hosts=HOSTS, **gpus(4, 4)))
    # two processes of one host that take one of two each
    assert silent(workers(**gpus(2, 1)))


def parts(logical: int, used: int, visible: int = 1) -> RunBuilder:
    return workers(
        devices=[f"/device:CPU:{i}" for i in range(used)],
        visible_devices={"CPU": visible, "GPU": 0},
        logical_devices={"CPU": logical, "GPU": 0},
        local_replicas=used,
    )


def test_a_part_of_a_divided_device_without_a_replica_is_told() -> None:
    findings = found(parts(2, 1), ID)
    assert [one.ranks for one in findings] == [(0,), (1,)]
    assert "divided its CPU into 2 devices" in findings[0].title


def test_devices_as_they_are_and_parts_that_are_all_in_use_are_no_finding() -> None:
    assert silent(parts(2, 2))
    assert silent(parts(1, 1))
    assert silent(parts(2, 1, visible=2))  # two sockets, not divided


def test_processes_that_another_library_joins_need_no_cluster() -> None:
    run = workers(tell=False, workers=1, replicas=1, joined_by="horovod")
    run.spans = [one for one in run.spans if one["kind"] != "comm"]
    run.facts = [one for one in run.facts if one["name"] != "group"]
    for rank in range(2):
        run.fact("model", {"class": "Net", "parameters": 100}, rank)
    assert silent(run)


def test_a_worker_with_fewer_replicas_is_named() -> None:
    run = workers(hosts=HOSTS, **gpus(2, 2))
    replace_fact(run, "strategy", 1, how(2, 1, **gpus(1, 1)))
    (finding,) = found(run, ID)
    assert finding.ranks == (1,)


def failing(
    error: str | None, steps: int = 0, fit: str | None = None, **strategy: Any
) -> RunBuilder:
    run = workers(steps=steps, **strategy)
    for rank in range(2):
        if fit:
            run.fact("model", {"class": "Sequential", "keras": fit}, rank)
        run.span(rank, "init", run.now[rank], run.now[rank] + 10, "start")
        if error:
            state = {"state": "exception", "type": "ValueError", "message": error}
            run.fact("end_state", state, rank, time_ns=run.now[rank] + 10)
    return run


def test_the_error_of_fit_under_several_workers_is_recognised() -> None:
    run = failing(PER_REPLICA, keras="keras 3.15.1")
    (finding,) = found(run, "config.keras")
    assert (finding.severity, finding.certainty) == (Severity.CRITICAL, Certainty.PROVEN)
    assert "TF_USE_LEGACY_KERAS=1" in finding.advice[0]
    assert verdict(run).symptom == "crash"
    assert found(run, "config.reduction") == []


def test_the_error_alone_tells_even_when_nothing_else_was_recorded() -> None:
    """Keras 3 fails before it calls the first callback."""
    run = failing(PER_REPLICA)
    run.spans = []
    run.facts = [one for one in run.facts if one["name"] not in ("strategy", "tf_config")]
    run.fact("exception", {"type": "ValueError"}, 0)
    analysis = verdict(run)
    assert (analysis.symptom, analysis.phase) == ("crash", "startup")
    ids = [one.id for one in analysis.findings]
    assert ids[0] == "crash.error"
    assert "config.keras" in ids
    assert "coverage.partial" in ids


def test_fit_that_never_took_a_step_is_a_warning() -> None:
    (finding,) = found(failing(None, fit="keras 3.15.1"), "config.keras")
    assert (finding.severity, finding.certainty) == (Severity.WARNING, Certainty.LIKELY)


@pytest.mark.parametrize(
    "strategy",
    [
        {"fit": "tf_keras 2.21.0", "keras": "keras 3.15.1"},
        {"keras": "keras 3.15.1"},
        {"fit": "keras 2.15.0", "keras": "keras 2.15.0"},
        {"fit": "keras 3.15.1", "name": "MirroredStrategy"},
        {"fit": "keras 3.15.1", "steps": 25},
    ],
)
def test_other_combinations_are_no_finding(strategy: dict[str, Any]) -> None:
    assert found(failing(None, **strategy), "config.keras") == []


def test_what_ranks_trained_with_is_told_whatever_the_framework() -> None:
    run = RunBuilder(world_size=2, jitter=0.05)
    run.steps(25)
    run.fact("group", {"id": run.group, "name": "0", "ranks": [0, 1], "backend": "gloo"}, 0)
    for rank in range(2):
        run.fact("device", {"device": "cuda:0", "name": "some"}, rank)
        run.fact("versions", {"torch": "2.13.0"}, rank)
    setup = verdict(run).setup
    assert setup is not None
    assert (setup.strategy, setup.communication) == (None, ("gloo",))
    assert (setup.devices, setup.versions) == ({"CUDA": 2}, {"torch": "2.13.0"})
    assert verdict(RunBuilder(world_size=2)).setup is None


def test_auto_on_cpus_can_only_be_a_ring() -> None:
    setup = verdict(workers(implementation="AUTO")).setup
    assert setup is not None
    assert setup.communication == ("RING (AUTO on CPUs)",)
    setup = verdict(workers(hosts=HOSTS, implementation="AUTO", **gpus(2, 2))).setup
    assert setup is not None
    assert setup.communication == ("AUTO",)


def test_devices_are_counted_over_all_ranks() -> None:
    setup = verdict(workers(hosts=HOSTS, **gpus(2, 2))).setup
    assert setup is not None
    assert (setup.devices, setup.replicas, setup.workers) == ({"GPU": 4}, 2, 2)
