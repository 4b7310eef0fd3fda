"""Real jobs that fail: the verdict over what torchrun left names the rank that was made to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.text_logs.logs import alerts, judged

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("failing_job.py")
FAULTS = {
    "raise": ("crash.error", (2,), "proven"),
    "memory": ("crash.oom", (1,), "proven"),
    "kill": ("crash.killed", (1,), "proven"),
    "sleep": ("hang.missing_rank", (2,), "likely"),
    "save": ("hang.busy_rank", (0,), "likely"),
    "barrier": ("hang.missing_rank", (1,), "proven"),
    "order": ("hang.mismatch", (3,), "proven"),
    "size": ("hang.mismatch", (3,), "proven"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_injected_rank_is_named_from_any_of_the_logs(tmp_path: Path, fault: str) -> None:
    """From the one log of the launcher, and from the files of the ranks beside it."""
    folder, launcher = tmp_path / "ranks", tmp_path / "launcher.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL" if fault in ("order", "size") else "OFF"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
        "--log-dir", str(folder), "--redirects", "3", "--tee", "3", str(JOB), fault,
    ]  # fmt: skip
    with launcher.open("wb") as log:
        done = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, timeout=120, check=False
        )
    assert done.returncode != 0
    wanted = FAULTS[fault]
    assert alerts(judged([launcher])) == [wanted]
    assert alerts(judged([launcher, folder])) == [wanted]
    if fault not in ("kill", "memory"):  # what the launcher alone can tell of a killed rank
        id_, ranks, _ = wanted
        assert [found[:2] for found in alerts(judged([folder]))] == [(id_, ranks)]


def test_a_job_that_ends_well_has_no_findings(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.log"
    with launcher.open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             "--tee", "3", "--log-dir", str(tmp_path / "ranks"), str(JOB), "none"],
            stdout=log, stderr=subprocess.STDOUT, timeout=120, check=True,
            env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": "OFF"},
        )  # fmt: skip
    assert judged([tmp_path]).findings == ()
