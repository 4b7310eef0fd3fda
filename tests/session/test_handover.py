"""A user's SpanExporter gets the spans of the process while it runs, and never disturbs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tracekit
from tracekit import recorder
from tracekit.dataset import open_run
from tracekit.errors import UsageError
from tracekit.model import span_id, step_trace_id

PATIENCE_S = 120


def begin(folder: Path, exporter: object, **options: object) -> tracekit.session.Session:
    given = {"run": "r", "rank": 0, "world_size": 2, "agent": False, **options}
    session = tracekit.start(dir=str(folder), span_exporter=exporter, **given)  # type: ignore[arg-type]
    assert session is not None
    return session


def train(steps: int, first: int = 0) -> None:
    for number in range(first, first + steps):
        with tracekit.step(number), tracekit.span("work", number=number):
            pass


def names(exporter: InMemorySpanExporter) -> Counter[str]:
    return Counter(span.name for span in exporter.get_finished_spans())


def ids(exporter: InMemorySpanExporter) -> set[tuple[int, int]]:
    return {(s.context.trace_id, s.context.span_id) for s in exporter.get_finished_spans()}


def predicted(folder: Path, attempt: int = 0) -> set[tuple[int, int]]:
    """The ids of all spans with a step, from the run itself."""
    with open_run(folder) as run:
        return {
            (
                int.from_bytes(step_trace_id(run.run_id, attempt, row["step"]), "big"),
                int.from_bytes(span_id(run.run_id, attempt, row["rank"], row["span_id"]), "big"),
            )
            for row in run.table("spans").to_pylist()
            if row["step"] is not None
        }


def test_every_span_is_handed_over_once_under_the_ids_it_has_everywhere(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    session = begin(tmp_path, exporter)
    train(20)
    tracekit.stop()
    assert names(exporter) == {"train_step": 20, "work": 20, "train_run": 2}
    assert predicted(session.run_dir) <= ids(exporter)
    assert session.handover is not None
    assert (session.handover.done.taken, session.handover.done.failed) == (42, 0)


def test_spans_come_while_the_process_records(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    begin(tmp_path, exporter)
    train(3)
    give_up = time.monotonic() + PATIENCE_S
    while names(exporter)["train_step"] < 3 and time.monotonic() < give_up:
        time.sleep(0.05)
    assert names(exporter)["train_step"] == 3
    tracekit.stop()


def test_journals_of_many_segments_are_read_to_the_end_and_let_go(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    session = begin(tmp_path, exporter, segment_bytes=1 << 16)
    for first in range(0, 6000, 1000):
        train(1000, first)
        time.sleep(0.3)
    tracekit.stop()
    assert len(ids(exporter)) == sum(names(exporter).values())
    assert names(exporter) == {"train_step": 6000, "work": 6000, "train_run": 2}
    assert predicted(session.run_dir) <= ids(exporter)
    files = len(list((session.run_dir / "attempt-000" / "journal").iterdir()))
    assert files > 15
    assert Path("/proc/self/maps").read_text().count(str(session.run_dir)) < 5


def test_the_agent_takes_the_journals_all_the_same(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    session = begin(tmp_path, exporter, agent=True, world_size=1)
    train(50)
    tracekit.stop()
    journals = session.run_dir / "attempt-000" / "journal"
    give_up = time.monotonic() + PATIENCE_S
    while any(journals.iterdir()) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not any(journals.iterdir())
    assert len(predicted(session.run_dir)) == 100
    assert predicted(session.run_dir) <= ids(exporter)


def test_every_rank_of_the_process_is_handed_over(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    begin(tmp_path, exporter)
    train(2)

    def other() -> None:
        with tracekit.as_rank(1):
            train(3)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    tracekit.stop()
    ranks = Counter(
        span.resource.attributes["dl.rank"]
        for span in exporter.get_finished_spans()
        if span.name == "train_step"
    )
    assert ranks == {0: 2, 1: 3}
    assert len(ids(exporter)) == sum(names(exporter).values())


def test_nothing_is_handed_over_before_the_rank_is_known(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    session = tracekit.start(run="r", dir=str(tmp_path), agent=False, span_exporter=exporter)
    assert session is not None
    assert session.handover is not None
    with tracekit.span("load"):
        pass
    session.handover.look()
    time.sleep(1.5)  # the thread had its turn: were it wrong, this would show it
    assert exporter.get_finished_spans() == ()
    recorder.bind_identity(rank=3, world_size=4, uid_store=lambda key, mine: "agreed")
    train(2)
    tracekit.stop()
    own = [span for span in exporter.get_finished_spans() if span.name != "train_run"]
    assert {span.resource.attributes["dl.rank"] for span in own} == {3}
    assert {span.resource.attributes["tracekit.run.id"] for span in own} == {"agreed"}
    assert names(exporter)["load"] == 1
    assert predicted(session.run_dir) <= ids(exporter)


def test_a_process_that_trains_without_ever_naming_its_rank_need_not_wait_for_the_end(
    tmp_path: Path,
) -> None:
    exporter = InMemorySpanExporter()
    tracekit.start(run="r", dir=str(tmp_path), agent=False, span_exporter=exporter)
    train(2)
    give_up = time.monotonic() + PATIENCE_S
    while names(exporter)["train_step"] < 2 and time.monotonic() < give_up:
        time.sleep(0.05)
    assert names(exporter)["train_step"] == 2
    tracekit.stop()


class Refusing(SpanExporter):
    """Fails with every batch in one way or another."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.error is not None:
            raise self.error
        return SpanExportResult.FAILURE


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "it said so, and not why"),
        (ConnectionError("no"), "ConnectionError: no"),
    ],
)
def test_an_exporter_that_fails_is_counted_said_and_not_felt(
    error: BaseException | None, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = begin(tmp_path, Refusing(error))
    train(4)
    tracekit.stop()
    assert session.handover is not None
    assert (session.handover.done.taken, session.handover.done.failed) == (0, 10)
    assert f"Refusing did not take 10 of 10 spans: {reason}" in caplog.text
    assert len(predicted(session.run_dir)) == 8


def test_an_exporter_that_wants_to_exit_ends_nothing(tmp_path: Path) -> None:
    session = begin(tmp_path, Refusing(SystemExit("enough")))
    train(4)
    tracekit.stop()
    assert len(predicted(session.run_dir)) == 8


@pytest.mark.parametrize("nothing", ["console", object(), InMemorySpanExporter])
def test_what_is_no_exporter_is_refused_before_anything_begins(
    nothing: object, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="span_exporter= needs a SpanExporter"):
        begin(tmp_path, nothing)
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_can_come_later_and_the_first_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = InMemorySpanExporter(), InMemorySpanExporter()
    tracekit.start(run="r", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    train(1)
    for exporter in (first, first, second):
        tracekit.start(span_exporter=exporter)
    train(1, first=1)
    tracekit.stop()
    assert (names(first)["work"], names(second)["work"]) == (2, 0)
    assert caplog.text.count("span_exporter= of a second start() is ignored") == 1


def test_an_exporter_may_be_used_again_for_the_next_session(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    for number in range(2):
        begin(tmp_path, exporter, run=f"run{number}")
        train(1)
        tracekit.stop()
    assert names(exporter)["work"] == 2


# In processes of their own

TO_FILE = """
    import os, signal, sys, threading, time, tracekit
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter
    folder, path = sys.argv[1:3]
    exporter = ConsoleSpanExporter(
        out=open(path, "a"), formatter=lambda span: span.to_json(indent=None) + "\\n"
    )
    def begin(exporter):
        return tracekit.start(
            run="r", dir=folder, rank=0, world_size=1, agent=False, span_exporter=exporter
        )
    def train(steps):
        for number in range(steps):
            with tracekit.step(number), tracekit.span("work"):
                pass
"""


def process(tmp_path: Path, script: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(dedent(TO_FILE) + dedent(script))
    return subprocess.Popen(
        [sys.executable, str(path), str(tmp_path / "runs"), str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(running: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, said = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
    return running.returncode, said


def printed(tmp_path: Path) -> Counter[str]:
    path = tmp_path / "out"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(json.loads(line)["name"] for line in lines)


def test_at_a_normal_exit_the_rest_is_handed_over(tmp_path: Path) -> None:
    running = process(tmp_path, "begin(exporter); train(100)")
    assert finished(running) == (0, "")
    assert printed(tmp_path) == {"train_step": 100, "work": 100, "train_run": 2}


def test_an_uncaught_exception_is_no_reason_to_lose_spans(tmp_path: Path) -> None:
    running = process(tmp_path, "begin(exporter); train(10); raise ValueError('mine')")
    code, said = finished(running)
    assert code == 1
    assert said.rstrip().endswith("ValueError: mine")
    assert printed(tmp_path)["work"] == 10


def test_a_provider_that_shuts_its_exporter_down_at_exit_comes_second(tmp_path: Path) -> None:
    script = """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    class Closing(ConsoleSpanExporter):
        def shutdown(self):
            self.out.close()
    exporter = Closing(out=exporter.out, formatter=exporter.formatter)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    begin(exporter)
    train(10)
    """
    code, _ = finished(process(tmp_path, script))
    assert code == 0
    assert printed(tmp_path)["work"] == 10


def test_a_handler_of_sigterm_that_exits_hands_the_rest_over(tmp_path: Path) -> None:
    script = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    begin(exporter)
    train(10)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
    """
    assert finished(process(tmp_path, script)) == (3, "")
    assert printed(tmp_path)["work"] == 10


def test_sigterm_kills_as_ever_and_leaves_what_was_handed_over(tmp_path: Path) -> None:
    running = process(tmp_path, "begin(exporter); train(10); time.sleep(600)")
    give_up = time.monotonic() + PATIENCE_S
    while printed(tmp_path)["work"] < 10 and time.monotonic() < give_up:
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    assert finished(running) == (-signal.SIGTERM, "")
    assert printed(tmp_path)["work"] == 10


@pytest.mark.parametrize("end", ["", "tracekit.stop()"])
def test_an_exporter_that_hangs_does_not_hold_the_process(end: str, tmp_path: Path) -> None:
    script = f"""
    class Hanging(SpanExporter):
        def export(self, spans):
            threading.Event().wait()
    begin(Hanging())
    train(10)
    {end}
    """
    code, said = finished(process(tmp_path, script))
    assert code == 0
    assert said.count("Hanging did not take the last spans within 5 s") == 1
    assert said.count("\n") == 1


def test_an_exporter_that_is_too_slow_for_the_end_is_left_alone_after_it(tmp_path: Path) -> None:
    script = """
    class Slow(SpanExporter):
        taken = 0
        def export(self, spans):
            time.sleep(1)
            Slow.taken += len(spans)
    begin(Slow())
    train(5000)
    tracekit.stop()
    time.sleep(2)
    taken = Slow.taken
    time.sleep(2)
    sys.exit(0 if taken == Slow.taken < 10_000 else 1)
    """
    code, said = finished(process(tmp_path, script))
    assert code == 0
    assert said == (
        "tracekit: Slow did not take the last spans within 5 s: they are in the run alone\n"
    )


def test_a_forked_child_hands_nothing_over_and_does_not_wait(tmp_path: Path) -> None:
    script = """
    import warnings
    warnings.simplefilter("ignore")
    begin(exporter)
    train(5)
    child = os.fork()
    if child == 0:
        train(7)
        tracekit.stop()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(status)
    """
    assert finished(process(tmp_path, script)) == (0, "")
    assert printed(tmp_path) == {"train_step": 5, "work": 5, "train_run": 2}


def test_without_the_sdk_the_extra_is_named_and_nothing_begins(tmp_path: Path) -> None:
    script = """
    import sys, tracekit
    sys.modules["opentelemetry"] = None
    class Own:
        def export(self, spans): ...
    try:
        tracekit.start(dir=sys.argv[1], span_exporter=Own())
    except tracekit.errors.MissingDependency as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.stdout.startswith("opentelemetry-sdk is not installed: pip install")
    assert list(tmp_path.iterdir()) == []
