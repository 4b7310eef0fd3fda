"""TF_CONFIG as it stands, and who a process is by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracekit.adapters.tensorflow._cluster import place_of, tf_config, world_of
from tracekit.session._environment import read_environment

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def configured(kind: str, index: Any, cluster: Any = CLUSTER) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (configured("worker", 1), None),
        (configured("evaluator", 0), None),
        (configured("worker", 2), "worker 2 is not one of 2"),
        (configured("worker", "x"), "the index 'x' is no number"),
        (configured("helper", 0), "the cluster has no helper"),
        ('{"cluster": {}}', "it has no cluster"),
        ('{"cluster": {"worker": ["a:1"]}}', "it has no task with a type and an index"),
        ("[1]", "it is no object"),
    ],
)
def test_a_cluster_is_looked_through(text: str, error: str | None) -> None:
    told = tf_config(text)
    assert told is not None
    assert (told["error"], told["valid"]) == (error, error is None)


def test_what_is_not_json_is_said() -> None:
    told = tf_config("{worker: 1}")
    assert told is not None
    assert str(told["error"]).startswith("it is not JSON")


@pytest.mark.parametrize(
    ("kind", "index", "rank", "apart"),
    [
        ("chief", 0, 0, None),
        ("worker", 1, 2, None),
        ("evaluator", 0, None, "evaluator-0"),
        ("ps", 0, None, "ps-0"),
    ],
)
def test_evaluators_and_parameter_servers_are_no_ranks(
    kind: str, index: int, rank: int | None, apart: str | None
) -> None:
    environment = read_environment({"TF_CONFIG": configured(kind, index)})
    assert (environment.rank, environment.apart) == (rank, apart)
    assert (environment.cluster is None) == (apart is not None)


class Resolver:
    task_type, task_id = "worker", 1

    def cluster_spec(self) -> Any:
        class Spec:
            def as_dict(self) -> dict[str, list[str]]:
                return CLUSTER

        return Spec()


class Strategy:
    cluster_resolver = Resolver()


def test_the_resolver_says_rank_and_world() -> None:
    assert place_of(Strategy()) == ("worker", 1)
    assert world_of(Strategy()) == (2, 3)
