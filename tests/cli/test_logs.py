"""``tracekit analyze`` of text logs, and of runs with a launcher's log in them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from tests.cli.conftest import Call
from tracekit.dataset import TABLES, write_table
from tracekit.testing import RunBuilder

ERROR = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/job/train.py", line 12, in load
[rank2]:     raise ValueError("bad sample 17")
[rank2]: ValueError: bad sample 17
"""


def test_a_log_and_a_folder_of_logs_are_analyzed_together(call: Call, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for rank in range(3):
        (logs / str(rank)).mkdir(parents=True)
        (logs / str(rank) / "stderr.log").write_text(f"step {rank}\n")
    launcher = tmp_path / "launcher.log"
    launcher.write_text(ERROR)
    shown = call("analyze", launcher, logs, "--format", "json", "--fail-on", "critical")
    assert shown.code == 1
    finding = json.loads(shown.out)["findings"][0]
    assert (finding["id"], finding["ranks"]) == ("crash.error", [2])
    assert finding["evidence"]["source"].endswith("launcher.log:1")
    assert finding["evidence"]["frame"] == "/job/train.py:12 load"


def test_a_launchers_log_in_a_run_is_read_with_it(call: Call, tmp_path: Path) -> None:
    built = RunBuilder(world_size=4)
    built.steps(10)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"uid": "run", "label": "run"}')
    for name, rows in (("spans", built.spans), ("facts", built.facts)):
        write_table(run, name, pa.Table.from_pylist(rows, schema=TABLES[name]), world_size=4)
    before = json.loads(call("analyze", run, "--format", "json").out)
    assert before["symptom"] == "healthy"
    (run / "attempt-000").mkdir()
    (run / "attempt-000" / "launcher.log").write_text(ERROR)
    (run / "attempt-000" / "ranks").mkdir()
    told = json.loads(call("analyze", run, "--format", "json").out)
    errors = [f["evidence"]["first_errors"] for f in told["findings"]
              if "first_errors" in f["evidence"]]  # fmt: skip
    assert errors[0][2]["error"] == "ValueError: bad sample 17"
    assert errors[0][2]["source"] == "attempt-000/launcher.log:1"
    assert told["symptom"] == "healthy"  # no launcher said that the rank had ended
