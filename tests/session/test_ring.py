"""A job that hangs answers its agent with what PyTorch remembers of its calls, and pays little."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from tracekit.adapters._ring import LARGEST_RING, NotTaken, take_ring  # noqa: E402
from tracekit.journal.reader import open_journal  # noqa: E402
from tracekit.journal.writer import JournalWriter  # noqa: E402
from tracekit.session._ring import answer  # noqa: E402
from tracekit.session._rundir import Place  # noqa: E402

C10D = "torch._C._distributed_c10d"
MODULE = "torch.distributed.distributed_c10d"


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank that has made a call."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(8))
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("gloo")
def test_a_ring_is_taken_and_nothing_is_imported_for_it() -> None:
    """To name the frames of stacks PyTorch imports its compiler, in whatever job."""
    known = set(sys.modules)
    dump = take_ring(stacks=True, environ={})
    assert dump is not None
    assert set(sys.modules) == known
    assert pickle.loads(dump)["entries"][-1]["profiling_name"] == "gloo:all_reduce"


def test_without_a_process_group_there_is_nothing_to_take() -> None:
    assert take_ring(stacks=False, environ={}) is None


@pytest.mark.usefixtures("gloo")
def test_a_ring_that_would_stop_the_job_for_long_is_left_alone() -> None:
    with pytest.raises(NotTaken, match="too many"):
        take_ring(stacks=False, environ={"TORCH_FR_BUFFER_SIZE": str(LARGEST_RING + 1)})


@pytest.mark.usefixtures("gloo")
def test_a_pytorch_that_records_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, C10D, SimpleNamespace())
    with pytest.raises(NotTaken, match="this version of PyTorch"):
        take_ring(stacks=False, environ={})


def test_the_rings_of_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {1: ("nccl", None), 2: ("gloo", None)}
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_world=SimpleNamespace(pg_map=groups)))
    with pytest.raises(NotTaken, match="nccl"):
        take_ring(stacks=False, environ={})


@pytest.mark.usefixtures("gloo")
def test_answers_are_whole_files_and_the_last_two_stay(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, tmp_path, "rank-00000.host-1")
    for question in (2, 4, 7):
        answer(question, place)
    assert sorted(path.name for path in tmp_path.glob("*rank*")) == [
        "rank-00000.host-1.1.ring",
        "rank-00000.host-1.2.ring",
    ]


@pytest.mark.usefixtures("gloo")
def test_trouble_with_an_answer_is_said_and_never_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    answer(2, Place(gone, gone, gone, "rank-00000.host-1"))
    assert "could not be dumped" in caplog.text


def test_the_journals_thread_answers_each_question_once(tmp_path: Path) -> None:
    asked: list[int] = []
    writer = JournalWriter(tmp_path, "rank-00000.host-1", {"rank": 0}, segment_bytes=1 << 16)
    writer.answer = asked.append
    reader = open_journal(tmp_path / "rank-00000.host-1.head.tkj")
    for number in (1, 2):
        reader.ask(stacks=number == 1)
        while len(asked) < number:
            pass
    writer.close()
    assert asked == [3, 4]
