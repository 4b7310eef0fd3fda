"""Reading torchrun's last words."""

from __future__ import annotations

from tracekit.cli._demo.summary import failures

SUMMARY = """
W1129 15:45:45.1 11120 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process \
11195 closing signal SIGTERM
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
worker.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_15:45:45
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11195)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 11195
[2]:
  time      : 2026-11-29_15:45:45
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 11197)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_15:45:45
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 11196) (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 11196
=======================================================
"""


def test_every_failed_rank_is_told_with_its_signal() -> None:
    assert failures(SUMMARY) == [
        {"rank": 0, "pid": 11195, "exitcode": -15, "signal": 15},
        {"rank": 1, "pid": 11196, "exitcode": -9, "signal": 9},
        {"rank": 2, "pid": 11197, "exitcode": 1, "signal": None},
    ]


def test_a_job_that_went_well_has_no_failures() -> None:
    assert failures("step 5 of 60\nstep 10 of 60\n") == []
