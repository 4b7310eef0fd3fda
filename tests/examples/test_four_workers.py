"""The example runs with the standard library alone and names the slow worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_four_workers_end_in_the_verdict(tmp_path: Path) -> None:
    # -S: no site-packages, so nothing but Python and this checkout
    command = [sys.executable, "-S", str(ROOT / "examples" / "four_workers.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    verdict, where = done.stdout.splitlines()
    assert verdict == (
        "rank 3 makes the others wait 1.2 s a round, 75 % of it (by the peer and the mean rule)"
    )
    assert where == f"recorded in {tmp_path / 'runs' / 'four-workers'}"
    # As journals or, where an agent was quick, as parts.
    command = [sys.executable, "-m", "tracekit", "analyze", str(tmp_path / "runs" / "four-workers")]
    report = json.loads(
        subprocess.run([*command, "--format", "json"], capture_output=True, check=True).stdout
    )
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
