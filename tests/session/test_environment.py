"""What launchers say is understood, and what nobody says is not made up."""

from __future__ import annotations

import json

import pytest

from tracekit.session._environment import machine, read_environment, settings

_CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]}


def _tf_config(kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": _CLUSTER, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environ", "rank", "world_size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, 3, 8),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1"}, 5, 6),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 0, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2),
        (_tf_config("chief", 0), 0, 3),
        (_tf_config("worker", 1), 2, 3),
        ({}, None, None),
        ({"RANK": "9", "WORLD_SIZE": "8"}, None, None),
        ({"RANK": "one", "WORLD_SIZE": "8"}, None, None),
        ({"TF_CONFIG": "not JSON"}, None, None),
        ({"TF_CONFIG": '{"cluster": 3, "task": null}'}, None, None),
        (_tf_config("evaluator", 0), None, None),
    ],
)
def test_rank_and_world_size_come_from_whoever_launched_the_process(
    environ: dict[str, str], rank: int | None, world_size: int | None
) -> None:
    found = read_environment(environ)
    assert (found.rank, found.world_size) == (rank, world_size)


def test_torchrun_wins_over_the_slurm_step_that_it_runs_in() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "77"}
    found = read_environment({**slurm, "RANK": "5", "WORLD_SIZE": "16"})
    assert (found.rank, found.world_size, found.uid) == (5, 16, "slurm-77")


@pytest.mark.parametrize("word", ["", "none", "default"])
def test_a_launcher_id_that_means_nothing_is_no_id(word: str) -> None:
    assert read_environment({"TORCHELASTIC_RUN_ID": word}).uid is None


def test_a_restart_by_the_launcher_is_the_next_attempt() -> None:
    found = read_environment({"TORCHELASTIC_RUN_ID": "x1", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (found.uid, found.attempt) == ("x1", 2)
    found = read_environment({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"})
    assert (found.uid, found.attempt) == ("slurm-9", 1)


def test_workers_of_one_tensorflow_cluster_share_what_they_join_by() -> None:
    chief, worker = (
        read_environment(_tf_config("chief", 0)),
        read_environment(_tf_config("worker", 0)),
    )
    assert chief.cluster == worker.cluster is not None


@pytest.mark.parametrize(
    ("text", "disabled"), [("1", True), ("true", True), ("0", False), ("", False)]
)
def test_tracing_can_be_disabled(text: str, disabled: bool) -> None:
    assert read_environment({"TRACEKIT_DISABLED": text}).disabled is disabled


def test_the_machine_tells_a_process_from_the_next_owner_of_its_pid() -> None:
    here = machine()
    assert here.pid_start
    assert here.boot_id


def test_what_libraries_look_at_is_kept_and_the_rest_is_not() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "GPU-8a56a4bc-1f9e-4d0c-9b7a-5e6f7a8b9c0d",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "8",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "PYTHONHASHSEED": "0",
        "MASTER_ADDR": "10.0.0.7",
        "TF_CONFIG": _tf_config("chief", 0)["TF_CONFIG"],
    }
    others = {"HOME": "/home/me", "WANDB_API_KEY": "abc", "PATH": "/bin", "AWS_REGION": "eu"}
    assert settings({**environ, **others}) == environ


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_AUTH_TOKEN", "abc"),
        ("TORCH_HUB_PASSWORD", "abc"),
        ("MASTER_KEY", "abc"),
        ("PYTORCH_INDEX", "https://me:mine@example.org/simple"),
        ("TORCH_HUB", "hf_abcdefghijklmnopqrstuv"),
        ("TORCH_STORE", "s3://AKIAABCDEFGHIJKLMNOP"),
        ("TF_HEADERS", "Authorization: Bearer abc"),
        ("TF_ID", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"),
        ("NVIDIA_LICENSE", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15"),
    ],
)
def test_what_looks_like_a_secret_is_masked(name: str, value: str) -> None:
    assert settings({name: value}) == {name: "***"}


def test_a_long_setting_is_cut() -> None:
    assert settings({"NCCL_TOPO": "a b " * 1000}) == {"NCCL_TOPO": "a b " * 100}
