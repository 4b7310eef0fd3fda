"""What is no profile, or a damaged one: named, skipped, counted; the rest is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.xplane import runs, spaces
from tests.adapters.xplane.spaces import Event, block, number, varint
from tracekit.adapters.xplane import XPlaneImporter
from tracekit.adapters.xplane._profile import read_profile
from tracekit.adapters.xplane._space import open_space
from tracekit.dataset import open_run

HEADS = {
    "nothing": b"",
    "text": b"hello\n" * 100,
    "other protobuf": block(1, number(1, 7) + block(3, "x")) + number(2, 5),
    "a step stats proto": block(1, block(1, "/job:worker/replica:0") + block(2, b"\0" * 30)),
    "parquet": b"PAR1" + bytes(100),
    "a length of 2**60": b"\x0a" + varint(1 << 60) + b"junk",
    "newlines": b"\n" * 100,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_what_is_no_profile_is_not_taken_for_one_whatever_its_name(
    tmp_path: Path, head: bytes
) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(head)
    assert not XPlaneImporter().recognizes(path, head)
    with open_space(path) as space:
        assert read_profile(space).empty


def test_a_profile_is_known_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "download(1)"
    path.write_bytes(spaces.recorded_bytes())
    intake = runs.imported([path], tmp_path / "run")
    assert intake.read == {path: "xplane"}


def test_a_cut_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    logs = spaces.recorded(tmp_path / "logs")
    cut = next((logs / "worker-1").rglob("*.pb"))
    cut.write_bytes(cut.read_bytes()[:20_000])
    intake = runs.imported([logs], tmp_path / "run")
    assert len(intake.read) == 1
    ((path, reason),) = intake.skipped
    assert path == cut
    assert "cut" in reason
    with open_run(tmp_path / "run") as run:
        assert run.coverage.missing_ranks == (1,)


def test_planes_before_the_cut_are_used(tmp_path: Path) -> None:
    data = spaces.worker(0)
    (tmp_path / "a.pb").write_bytes(data + block(1, "x" * 100)[:-50])
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    assert len(intake.read) == 1
    ((_, reason),) = intake.skipped
    assert reason.startswith("a part of it: after 2 planes")


def test_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    def later(body: bytes) -> bytes:
        return body + number(90, 5) + block(91, "new") + varint(92 << 3 | 1) + bytes(8)

    event = number(1, 1) + number(2, 0) + number(3, 5_000_000_000)
    line = later(block(2, "python") + block(4, later(event)) + number(93, 1))
    names = block(4, number(1, 1) + block(2, later(number(1, 1) + block(2, "dense/MatMul:MatMul"))))
    plane = later(block(2, "/host:CPU") + block(3, line) + names)
    (tmp_path / "a.pb").write_bytes(later(block(1, plane) + spaces.task()))
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    assert intake.skipped == []
    (row,) = runs.spans(tmp_path / "run").to_pylist()
    assert (row["kind"], row["duration_ns"]) == ("kernel", 5_000_000)


def test_events_without_metadata_are_nothing(tmp_path: Path) -> None:
    line = block(2, "python") + block(4, number(1, 77) + number(3, 1_000_000))
    (tmp_path / "a.pb").write_bytes(block(1, block(2, "/host:CPU") + block(3, line)))
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    ((_, reason),) = intake.skipped
    assert reason == "no host or device plane with events in it"


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    event = number(1, 1) + number(3, 1_000_000_000)
    line = block(2, b"\xff\xfe") + block(4, event)
    name = block(4, number(1, 1) + block(2, block(2, b"\xff\xfe:MatMul")))
    plane = block(2, "/host:CPU") + block(3, line) + name
    (tmp_path / "a.pb").write_bytes(block(1, plane) + spaces.task() + block(4, b"\xff"))
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    assert len(intake.read) == 1


@pytest.mark.parametrize(
    "event",
    [
        number(1, 1) + b"\x22" + varint(1 << 60),
        number(1, 1) + number(2, (1 << 64) - 1) + number(3, 1 << 63),
        number(1, 1) + number(2, 1 << 62) + number(3, (1 << 63) - 1),
        number(1, 1) + b"\x80" * 20,
        number(1, 1) + number(60, 1) * 3000,
        b"\xff" * 11,
    ],
    ids=["length", "negative", "late", "varint", "many fields", "tag"],
)
def test_hostile_events_are_counted_and_their_neighbours_read(tmp_path: Path, event: bytes) -> None:
    good = number(1, 1) + number(2, 1_000_000) + number(3, 1_000_000_000)
    line = block(2, "python") + block(4, good) + block(4, event) + block(4, good)
    name = block(4, number(1, 1) + block(2, block(2, "a:MatMul")))
    plane = block(2, "/host:CPU") + block(3, line) + name
    (tmp_path / "a.pb").write_bytes(block(1, plane) + spaces.task())
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    assert len(intake.read) == 1
    assert [reason for _, reason in intake.skipped] in (
        [],
        ["a part of it: 1 events are damaged"],
    )
    rows = runs.spans(tmp_path / "run").to_pylist()
    assert (spaces.START_NS + 1000, 1_000_000) in [
        (row["start_ns"], row["duration_ns"]) for row in rows
    ]


def test_an_event_larger_than_what_is_looked_at_together(tmp_path: Path) -> None:
    good = Event("a:MatMul", 1000, 1_000_000)
    large = Event("b:MatMul", 5_000_000, 1_000_000, {"shape": "x" * (9 << 20)})
    plane = spaces.plane("/host:CPU", {"python": [good, large, good]})
    (tmp_path / "a.pb").write_bytes(spaces.space(plane))
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    assert intake.skipped == []
    assert len(runs.spans(tmp_path / "run")) == 2


def test_a_profile_that_does_not_say_when_it_began(tmp_path: Path) -> None:
    plane = spaces.plane("/host:CPU", {"python": [Event("a:MatMul", 1000, 1_000_000)]})
    (tmp_path / "a.pb").write_bytes(plane)
    intake = runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    ((_, note),) = [one for one in intake.notes if "began" in one[1]]
    assert note == "it does not say when it began; its times count from then"


def test_lines_of_older_versions_count_in_unix_time(tmp_path: Path) -> None:
    events = [Event("a:MatMul", 1000, 1_000_000)]
    plane = spaces.plane("/host:CPU", {"python": events}, start_ns=spaces.START_NS)
    (tmp_path / "a.pb").write_bytes(plane)
    runs.imported([tmp_path / "a.pb"], tmp_path / "run")
    (row,) = runs.spans(tmp_path / "run").to_pylist()
    assert row["start_ns"] == spaces.START_NS + 1000


def test_two_files_of_one_worker_at_one_time(tmp_path: Path) -> None:
    for name in ("a.pb", "b.pb"):
        (tmp_path / name).write_bytes(spaces.worker(0))
    intake = runs.imported([tmp_path / "a.pb", tmp_path / "b.pb"], tmp_path / "run")
    ((path, reason),) = intake.skipped
    assert path.name == "b.pb"
    assert reason.startswith("of the same worker and time as")


WHOLE = spaces.recorded_bytes()


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_bytes_are_changed_nothing_is_raised(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 20))):
        place = data.draw(st.integers(0, len(made) - 1))
        made[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    if cut == 0:
        del made[data.draw(st.integers(0, len(made) - 1)) :]
    elif cut == 1:
        place = data.draw(st.integers(0, len(made) - 1))
        del made[place : place + data.draw(st.integers(1, 5000))]
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "a.pb"
    path.write_bytes(made)
    (folder / "b.pb").write_bytes(spaces.recorded_bytes(1))
    intake = runs.imported([path, folder / "b.pb"], folder / "run")
    assert folder / "b.pb" in intake.read
    assert all(path.suffix == ".pb" and reason for path, reason in intake.skipped)
    assert not any("cannot be read" in reason for _, reason in intake.skipped)
    runs.verdict(folder / "run")
