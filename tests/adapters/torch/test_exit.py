"""The end of a process: threads of the backend get the interpreter once more."""

from __future__ import annotations

import subprocess
import sys
import threading
import zlib

import pytest

from tracekit.adapters.torch._comm import exit as _exit

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
NOISE = bytes(range(256)) * 400_000


@linux_only
def test_a_thread_that_computes_without_the_interpreter_is_seen_until_it_is_over() -> None:
    thread = threading.Thread(target=zlib.compress, args=(NOISE, 9))
    thread.start()
    seen = False  # between its start and its work it may wait for the interpreter
    while not seen and thread.is_alive():
        seen = _exit._others_run()
    thread.join()
    assert seen
    _exit._settle()
    assert not _exit._others_run()


def test_a_process_with_a_thread_that_never_rests_ends_all_the_same() -> None:
    script = (
        "import threading, zlib\n"
        "from tracekit.adapters.torch._comm.exit import settle_at_exit\n"
        "def turn():\n"
        "    while True: zlib.compress(bytes(1_000_000))\n"
        "threading.Thread(target=turn, daemon=True).start()\n"
        "settle_at_exit(); settle_at_exit()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 0


def test_where_nobody_lists_threads_none_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr("os.listdir", denied)
    assert not _exit._others_run()
