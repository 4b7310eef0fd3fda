"""What goes wrong among real workers: said of them, and of no sound ones like them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.adapters.tensorflow.running import (
    Verdict,
    addresses,
    processes,
    python,
    told,
    verdict_of,
)

pytestmark = pytest.mark.slow
JOB = Path(__file__).with_name("worker_job.py")
LONGEST_S = 240.0


def run(
    folder: Path,
    name: str,
    configs: Sequence[str | None],
    until: Callable[[], bool] = lambda: False,
    before: Sequence[Sequence[str]] = ((), ()),
    longest_s: float = LONGEST_S,
    **more: str,
) -> list[int | None]:
    """Run a worker for each TF_CONFIG until all have ended, or until it is enough.

    Returns the exit codes, None of those that were still there.
    """
    commands = [[*words, *python(JOB, name, str(folder))] for words in before]
    environments = [
        {**more, **({"TF_CONFIG": config} if config is not None else {})} for config in configs
    ]
    if name != "fit_of_keras_3":
        environments = [{"TF_USE_LEGACY_KERAS": "1", **one} for one in environments]
    for rank, one in enumerate(environments if "WORLD_SIZE" in more else []):
        one["RANK"] = one["LOCAL_RANK"] = str(rank)
    with processes(commands, environments, folder) as workers:
        deadline = time.monotonic() + longest_s
        while time.monotonic() < deadline and not until():
            if all(one.poll() is not None for one in workers):
                break
            time.sleep(0.5)
        return [one.poll() for one in workers]


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/run.json"))


def test_a_wrong_worker_is_named_in_all_that_is_wrong(tmp_path: Path) -> None:
    """Its data ends early, one batch has what is no number, it saves more than the other."""
    cluster = addresses(2)
    codes = run(tmp_path, "wrong", [told(cluster, 0), told(cluster, 1)])
    assert codes == [0, 0]
    verdict = verdict_of(tmp_path / "run")
    (nonfinite,) = verdict.found("numeric.nonfinite")
    assert (nonfinite["ranks"], nonfinite["severity"]) == ([1], "critical")
    (uneven,) = verdict.found("data.uneven")
    assert uneven["ranks"] == [1]
    assert uneven["evidence"]["batches"] == {"0": 30, "1": 26}
    (skew,) = verdict.found("checkpoint.skew")
    assert (skew["ranks"], skew["certainty"]) == ([0, 1], "proven")
    assert skew["evidence"]["states"]["1"]["variables"] > skew["evidence"]["states"]["0"][
        "variables"
    ]  # fmt: skip
    (summed,) = verdict.found("config.reduction")
    assert summed["certainty"] == "likely"
    assert "replica_step() is a mean on each replica" in summed["title"]


def test_sound_workers_are_no_finding_and_say_what_they_trained_with(tmp_path: Path) -> None:
    cluster = addresses(2)
    codes = run(tmp_path, "sound", [told(cluster, 0), told(cluster, 1)])
    assert codes == [0, 0]
    verdict = verdict_of(tmp_path / "run")
    wrong = ("config.", "numeric.", "checkpoint.", "data.uneven", "data.shuffle", "hang.", "crash.")
    assert [one for one in verdict.ids if one.startswith(wrong)] == []
    setup = verdict.text["setup"]
    assert setup["strategy"] == "CollectiveAllReduceStrategy"
    assert (setup["replicas"], setup["workers"], setup["devices"]) == (2, 2, {"CPU": 2})
    assert setup["communication"] == ["RING (AUTO on CPUs)"]


def test_one_file_for_two_workers_that_are_dealt_files_is_told(tmp_path: Path) -> None:
    cluster = addresses(2)
    codes = run(tmp_path, "few_files", [told(cluster, 0), told(cluster, 1)])
    assert 0 not in codes
    (finding,) = verdict_of(tmp_path / "run").found("data.uneven")
    assert "has 1 for 2 workers" in finding["title"]


def test_fit_of_keras_3_under_several_workers_is_recognised(tmp_path: Path) -> None:
    cluster = addresses(2)
    codes = run(tmp_path, "fit_of_keras_3", [told(cluster, 0), told(cluster, 1)])
    assert 0 not in codes
    (finding,) = verdict_of(tmp_path / "run").found("config.keras")
    assert (finding["severity"], finding["certainty"]) == ("critical", "proven")


def test_workers_that_each_mirror_their_own_devices_train_alone(tmp_path: Path) -> None:
    cluster = addresses(2)
    codes = run(tmp_path, "mirrored", [told(cluster, 0), told(cluster, 1)])
    assert codes == [0, 0]
    verdict = verdict_of(tmp_path / "run")
    (finding,) = [one for one in verdict.found("config.strategy") if "names 2" in one["title"]]
    assert (finding["ranks"], finding["severity"]) == ([0, 1], "critical")
    assert "MirroredStrategy trains with 1" in finding["title"]
    assert verdict.found("config.keras") == []


def test_no_cluster_under_a_launcher_of_two_is_told(tmp_path: Path) -> None:
    codes = run(tmp_path, "fit", [None, None], WORLD_SIZE="2", MASTER_PORT="29999")
    assert codes == [0, 0]
    verdict = verdict_of(tmp_path / "run")
    (finding,) = verdict.found("config.tf_config")
    assert (finding["ranks"], finding["certainty"]) == ([0, 1], "likely")
    assert "2 processes were started together" in finding["title"]


def test_no_cluster_for_a_process_by_itself_is_no_finding(tmp_path: Path) -> None:
    codes = run(tmp_path, "fit", [None], before=[()])
    assert codes == [0]
    assert [i for i in verdict_of(tmp_path / "run").ids if i.startswith("config.")] == []


# TF_CONFIG


def test_a_text_that_is_not_json_is_named_with_its_error(tmp_path: Path) -> None:
    codes = run(tmp_path, "fit", ["{worker: 1}"], before=[()])
    assert codes == [1]
    (finding,) = verdict_of(*runs_in(tmp_path)).found("config.tf_config")
    assert (finding["severity"], finding["certainty"]) == ("critical", "proven")
    assert "it is not JSON" in finding["title"]


def all_there(folder: Path, count: int) -> Callable[[], bool]:
    """Whether so many processes have begun a while ago: they wait for each other for ever."""
    since: list[float] = []

    def enough() -> bool:
        if not since and len(list(folder.glob("*/attempt-*/journal/*.head.tkj"))) >= count:
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] > 10

    return enough


def test_an_index_beyond_the_cluster_is_named(tmp_path: Path) -> None:
    cluster = addresses(2)
    run(
        tmp_path,
        "fit",
        [told(cluster, 0), told(cluster, 2)],
        all_there(tmp_path, 2),
    )
    findings = [
        one for path in runs_in(tmp_path) for one in verdict_of(path).found("config.tf_config")
    ]
    assert len(findings) == 1
    assert "worker 2 is not one of 2" in findings[0]["title"]


def test_two_processes_with_one_index_are_told_with_who_is_absent(tmp_path: Path) -> None:
    cluster = addresses(2)
    run(tmp_path, "fit", [told(cluster, 0), told(cluster, 0)], all_there(tmp_path, 2))
    (finding,) = verdict_of(tmp_path / "run").found("config.tf_config")
    assert finding["certainty"] == "likely"
    assert "2 processes came as worker 0" in finding["title"]
    assert "nobody came as worker 1" in finding["title"]


def test_clusters_that_differ_between_workers_are_told(tmp_path: Path) -> None:
    cluster = addresses(3)
    run(
        tmp_path,
        "fit",
        [told(cluster[:2], 0), told(cluster, 1)],
        all_there(tmp_path, 2),
    )
    findings = [
        one for path in runs_in(tmp_path) for one in verdict_of(path).found("config.tf_config")
    ]
    assert ["not as many tasks" in one["title"] for one in findings] == [True]


def host(name: str, *more: str) -> list[str]:
    """What gives a process a host name of its own, and perhaps a network."""
    return ["unshare", "--uts", *more, "sh", "-c", f'hostname {name} && exec "$@"', "sh"]


def may_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    command = [*host("other", "--net"), "ip", "link", "set", "lo", "up"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_hosts = pytest.mark.skipif(not may_unshare(), reason="may not make hosts")


@needs_hosts
def test_localhost_on_hosts_that_cannot_reach_each_other_is_critical(tmp_path: Path) -> None:
    cluster = addresses(2)
    run(
        tmp_path,
        "fit",
        [told(cluster, 0), told(cluster, 1)],
        all_there(tmp_path, 2),
        before=[host("node-0", "--net"), host("node-1", "--net")],
        LOOPBACK_IS_DOWN="1",
    )
    (finding,) = verdict_of(tmp_path / "run").found("config.tf_config")
    assert (finding["ranks"], finding["severity"]) == ([0, 1], "critical")
    assert "node-0, node-1" in finding["title"]


@needs_hosts
def test_localhost_that_leads_there_all_the_same_is_information(tmp_path: Path) -> None:
    """Two names, one network: as two containers of a pod."""
    cluster = addresses(2)
    codes = run(
        tmp_path,
        "fit",
        [told(cluster, 0), told(cluster, 1)],
        before=[host("node-0"), host("node-1")],
    )
    assert codes == [0, 0]
    verdict = verdict_of(tmp_path / "run")
    (finding,) = verdict.found("config.tf_config")
    assert (finding["severity"], finding["certainty"]) == ("info", "cannot_tell")
    assert verdict.found("config.keras") == []


# Saves


def test_a_worker_that_never_enters_a_save_is_named(tmp_path: Path) -> None:
    cluster = addresses(2)
    seen: list[Verdict] = []

    def hangs() -> bool:
        time.sleep(4)
        if not runs_in(tmp_path):
            return False
        seen[:] = [verdict_of(tmp_path / "run")]
        return bool(seen[0].text["symptom"] == "hang")

    run(tmp_path, "save", [told(cluster, 0), told(cluster, 1)], hangs)
    (finding,) = [one for one in seen[0].text["findings"] if one["id"].startswith("hang.")]
    assert (finding["id"], finding["ranks"]) == ("hang.missing_rank", [1])
    assert "Checkpoint.save" in json.dumps(finding)
