"""Threads, collections, signals and new names at once, in a process that must not hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tracekit.dataset import open_run

SCRIPT = """
import gc, signal, sys, threading
import tracekit
from tracekit.model import Collective
from tracekit.recorder import span, span_type

tracekit.start(run="run", dir=sys.argv[1], rank=0, world_size=1, agent=False, segment_bytes=1 << 17)
pause = span_type("pause", "gc")
reduce = span_type("reduce", "comm", Collective("all_reduce", "g", 2))

def collected(phase, info):
    with span("callback"):
        pause.complete(1, 2, attributes={"generation": info["generation"]})

def signalled(number, frame):
    with span("handler"), span("handled", n=1):
        pass

def work(first):
    for number in range(first, first + 1_000):
        with span("work", number=number, new=f"text {number}"):
            reduce.end(reduce.begin(seq=number))

gc.callbacks.append(collected)
gc.set_threshold(5, 2, 2)
signal.signal(signal.SIGALRM, signalled)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
threads = [threading.Thread(target=work, args=(first,)) for first in (1_000, 2_000, 3_000)]
for thread in threads:
    thread.start()
work(0)
for thread in threads:
    thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
tracekit.stop()
"""


def test_nothing_hangs_and_what_the_threads_did_is_all_there(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, timeout=120)
    with open_run(tmp_path / "run") as run:
        rows = run.table("spans").to_pylist()
    work = [row for row in rows if row["name"] == "work"]
    numbers = sorted(int(dict(row["attributes"])["number"]) for row in work)
    assert numbers == list(range(4_000))
    assert sorted(r["collective_seq"] for r in rows if r["name"] == "reduce") == numbers
    by_id = {row["span_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    parents = {"reduce": "work", "handled": "handler", "pause": "callback"}
    for row in rows:
        if row["name"] in parents:
            assert by_id[row["parent_id"]]["name"] == parents[row["name"]]
