"""Healthy logs with lines that look bad: nothing above information is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.text_logs.logs import alerts, progress, traceback, verdict

GOES_ON = progress(range(4), steps=30, minute=5)

SCARY = {
    "warnings of libraries": (
        "[rank0]: UserWarning: Error detected in sampling will be ignored\n"
        "[rank1]: WARNING: destroy_process_group() was not called before program exit, which can"
        " leak resources\n"
        "[rank2]: using GPU 2 as device used by this process is currently unknown.\n"
    ),
    "plug-ins that are not there": (
        "node0:77:77 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.\n"
        "node0:77:77 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)\n"
        "[rank0]: NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
        "[rank0]: PROFILER/Plugin: Could not find: libnccl-profiler.so.\n"
    ),
    "an error that was caught": traceback(1, "ConnectionError: object store: retrying (1/5)"),
    "an error that was logged": "[rank2]: 2026-03-04 12:04:00,000 ERROR cannot upload metrics\n",
    "a connection that was tried again": (
        "[rank3]: requests.exceptions: Connection reset by peer, will retry in 5 s\n"
        "[rank3]: wandb: Network error (ConnectTimeout), entering retry loop.\n"
    ),
    "settings": (
        "[rank0]: timeout=1800 NCCL_BLOCKING_WAIT=1 fail_on_error=True oom_retry=3\n"
        "[rank0]: TIMEOUT(ms): 600000, error_file: /tmp/error.json, exitcode 0\n"
    ),
    "another program that the kernel killed": (
        "Mar  4 12:04:10 node0 kernel: [1.2] Out of memory: Killed process 99 (chrome)\n"
    ),
    "the launcher's greeting": (
        "*****************************************\n"
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to"
        " avoid your system being overloaded\n"
        "*****************************************\n"
    ),
    "counts of errors": "[rank1]: validation: 0 errors, 0 killed, 0 timeouts, error rate 0.00\n",
    "words about memory": (
        "[rank1]: CUDA memory: 70.1 GB allocated, out of 80 GB; memory is enough\n"
        "[rank1]: gradient checkpointing avoids running out of memory\n"
    ),
    "a batch that did not fit and was halved": traceback(
        2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    ),
    "an end in order": (
        "[rank0]: Received signal 10, saving state\n"
        "[rank0]: NCCL Work update periodically: last enqueued NCCL work: 90, last completed NCCL"
        " work: 88.\n"
    ),
    "a GPU's message that has no effect": (
        "[Wed Mar  4 12:04:58 2026] NVRM: Xid (PCI:0000:3b:00): 63, pid=99, row remapping\n"
    ),
    "assertions in names": "[rank0]: test_assert_failed_cases PASSED; Assertion coverage 3/3\n",
}


@pytest.mark.parametrize("scary", SCARY.values(), ids=SCARY)
def test_scary_lines_of_a_healthy_job_alert_nobody(tmp_path: Path, scary: str) -> None:
    result = verdict(tmp_path, progress(range(4)) + scary + GOES_ON)
    assert alerts(result) == []
    assert result.symptom == "healthy"


def test_a_healthy_job_has_no_findings(tmp_path: Path) -> None:
    assert verdict(tmp_path, GOES_ON).findings == ()


def test_a_long_silence_without_a_timeout_is_no_hang(tmp_path: Path) -> None:
    """A restore may take hours; a log alone cannot tell that it will not end."""
    text = progress(range(4)) + "".join(
        f"[rank{rank}]: 2026-03-04 12:00:09,000 waiting at the barrier\n" for rank in range(3)
    )
    assert alerts(verdict(tmp_path, text + "[rank3]: reading shard 12 of 900\n")) == []
