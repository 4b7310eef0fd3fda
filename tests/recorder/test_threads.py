"""Many threads, several ranks, and code that runs in the middle of a record."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.recorder.tape import Tape, recording
from tracekit import recorder
from tracekit.model.record import RecordType


@pytest.fixture
def frantic() -> Iterator[None]:
    """Threads that change places as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_all(*targets: Any) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("frantic")
def test_spans_of_many_threads_are_all_there_each_on_its_lane(tape: Tape) -> None:
    def work() -> None:
        name = threading.current_thread().name
        for number in range(300):
            outer = recorder.span("outer", number=number, thread=name)
            with outer, recorder.span("inner"):
                pass

    run_all(*[work] * 8)
    outer = tape.spans("outer")
    lanes = {row["span_id"]: row["lane"] for row in outer}
    assert Counter(lanes.values()) == dict.fromkeys(set(lanes.values()), 300)
    assert len(set(lanes.values())) == 8
    assert all(row["lane"] == f"thread:{row['attributes']['thread']}" for row in outer)
    assert all(row["lane"] == lanes[row["parent_id"]] for row in tape.spans("inner"))


@pytest.mark.usefixtures("frantic")
def test_spans_begun_here_and_ended_elsewhere_are_each_there_once(tape: Tape) -> None:
    work = recorder.span_type("work", "comm")
    tokens = [work.begin(seq=number) for number in range(500)]

    def end_all() -> None:
        for token in tokens:
            work.end(token)

    run_all(*[end_all] * 4)
    ids = [row["span_id"] for row in tape.spans("work")]
    assert len(ids) == len(set(ids)) == 500
    assert tape.open_spans() == []


@pytest.mark.usefixtures("frantic")
@pytest.mark.parametrize("attempt", range(5))
def test_stopping_while_others_record_raises_nowhere(tmp_path: Path, attempt: int) -> None:
    errors: list[BaseException] = []
    going = threading.Barrier(5)
    done = threading.Event()

    def work() -> None:
        collective = recorder.span_type("reduce", "comm", lane="group:g")
        try:
            going.wait()
            while not done.is_set():
                with recorder.span("a"), recorder.span("b", n=1, text="x"):
                    collective.end(collective.begin(seq=1), {"a": [1]})
                    collective.complete(1, 2)
                recorder.event("loss", value=1.0, text="t")
                with recorder.step(1):
                    pass
        except BaseException as error:
            errors.append(error)

    def stop() -> None:
        going.wait()
        for _ in range(50):
            recorder.current()
        tape.recorder.close()
        records = len(tape.spans())
        recorder.remove(tape.recorder)
        done.wait(0.05)
        done.set()
        # A thread may be in the middle of one record when it is silenced.
        assert len(tape.spans()) - records <= 8

    with recording(tmp_path, segment_bytes=1 << 17) as tape:
        run_all(stop, *[work] * 4)
    assert errors == []


def test_ranks_in_one_process_have_journals_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with recording(tmp_path / "other") as second, recording(tmp_path) as first:
        recorder.remove(second.recorder)
        second.recorder.rank = 3
        recorder.install(second.recorder, default=False)

        def work() -> None:
            with recorder.as_rank(3), recorder.span("third"):
                pass
            with recorder.span("back"):
                pass

        run_all(work)
        with recorder.span("default"):
            pass
        assert [row["name"] for row in first.spans()] == ["back", "default"]
        assert [row["name"] for row in second.spans()] == ["third"]


def test_a_garbage_collection_may_record_in_the_middle_of_a_record(tmp_path: Path) -> None:
    pause = recorder.span_type("gc", "gc")

    def callback(phase: str, info: dict[str, int]) -> None:
        with recorder.span(f"callback {phase}"):
            pause.complete(1, 2, attributes={"generation": info["generation"], "phase": phase})

    before = gc.get_threshold()
    with recording(tmp_path, segment_bytes=1 << 17) as tape:
        gc.callbacks.append(callback)
        gc.set_threshold(3, 2, 2)
        try:
            for number in range(400):
                with recorder.span("work", number=number, new=f"text {number}"):
                    recorder.event("now", number=[number])
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(callback)
        numbers = [row["attributes"]["number"] for row in tape.spans("work")]
        assert numbers == list(range(400))
        assert len(tape.events()) == 400
        pauses = tape.spans("gc")
        assert len(pauses) > 100
        assert all(row["attributes"].keys() == {"generation", "phase"} for row in pauses)
        assert tape.open_spans() == []


def test_a_signal_handler_may_record_in_the_middle_of_a_record(tmp_path: Path) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        with recorder.span("handler"), recorder.span("handled", n=1):
            pass

    before = signal.signal(signal.SIGALRM, handler)
    with recording(tmp_path, segment_bytes=1 << 17) as tape:
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        try:
            for number in range(5_000):
                with recorder.span("work", number=number):
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        numbers = [row["attributes"]["number"] for row in tape.spans("work")]
        assert numbers == list(range(5_000))
        handlers = {row["span_id"] for row in tape.spans("handler")}
        assert handlers
        assert {row["parent_id"] for row in tape.spans("handled")} <= handlers
        assert tape.open_spans() == []


def test_threads_of_c_that_call_again_and_again_take_one_chunk_each(tape: Tape) -> None:
    pthread = ctypes.CDLL(None)
    together = threading.Barrier(20)
    idents: set[int] = set()

    def work(_: object) -> None:
        idents.add(threading.get_ident())
        with recorder.span("work"):
            together.wait(60)

    called = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(work)
    for _ in range(10):  # each time Python knows nothing any more of the thread, nor its locals
        threads = [ctypes.c_ulong() for _ in range(20)]
        for thread in threads:
            pthread.pthread_create(ctypes.byref(thread), None, called, None)
        for thread in threads:
            pthread.pthread_join(thread, None)
    assert len(tape.spans("work")) == 200
    journal = tape.journal()
    taken = sum((batch.types == RecordType.CHUNK).sum() for batch in journal.records())
    assert 20 <= taken <= len(idents) < 100
