"""A TAR of ranks holds what the one file holds, and its manifest claims no more than is known."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from tests.exporters.packets import Reader, packets_in
from tests.exporters.runs import any_spans, not_text, overlaps, write_run
from tracekit.dataset import open_run, write_table
from tracekit.errors import MissingDependency, UsageError
from tracekit.exporters import perfetto
from tracekit.exporters.perfetto import Choice
from tracekit.testing.builder import RunBuilder

MANIFEST = "perfetto_manifest.json"


class OnlyWritten(io.RawIOBase):
    """A pipe: it takes bytes, and nothing else."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken.append(bytes(data))
        return len(data)


class Ranks:
    """The files of a TAR, and each trace as a viewer reads it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            self.members = tar.getmembers()
            self.files = {m.name: self._read(tar, m) for m in self.members}
        self.manifest = json.loads(self.files[MANIFEST])["perfetto_manifest"]
        traces = {name: data for name, data in self.files.items() if name != MANIFEST}
        self.readers = {name: Reader(packets_in(data)) for name, data in traces.items()}

    def _read(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        file = tar.extractfile(member)
        assert file is not None
        return file.read()

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return {entry["path"]: entry for entry in self.manifest["files"]}

    @property
    def machines(self) -> list[str]:
        return [entry["machine"]["name"] for entry in self.manifest["files"]]

    @property
    def tied(self) -> dict[str, tuple[str, int]]:
        """To which file each file is tied, and how far from it."""
        return {
            path: (entry["clocks"]["sync_to"]["file"], entry["clocks"]["offset_ns"])
            for path, entry in self.entries.items()
            if "clocks" in entry
        }


def exported(source: RunBuilder | Path, folder: Path, choice: Choice | None = None) -> bytes:
    pytest.importorskip("perfetto")
    path = source if isinstance(source, Path) else write_run(source, folder / "run")
    file = OnlyWritten()
    with open_run(path) as run:
        perfetto.export_per_rank(run, file, choice)  # type: ignore[arg-type]
    return b"".join(file.taken)


def in_one_file(run: Path) -> Reader:
    file = io.BytesIO()
    with open_run(run) as opened:
        perfetto.export(opened, file)
    return Reader(packets_in(file.getvalue()))


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return sorted(map(repr, one)) == sorted(map(repr, other))


def check(ranks: Ranks, whole: Reader) -> None:
    """The files together are the one file, and each of them alone is a trace."""
    readers = ranks.readers.values()
    assert same([span for reader in readers for span in reader.spans], whole.spans)
    assert same([c for reader in readers for c in reader.counters], whole.counters)
    assert same([i for reader in readers for i in reader.instants], whole.instants)
    for name, reader in ranks.readers.items():
        assert {f"rank-{rank:05d}.pftrace" for rank, *_ in reader.spans} <= {name}
        assert not reader.flows
        for spans in reader.lanes.values():
            assert overlaps(sorted(spans, key=lambda span: (span[0], -span[1]))) == []
    # In one trace processor a number stands for one track, whichever file it comes from.
    assert sum(len(reader.tracks) for reader in readers) == len(whole.tracks)
    assert set().union(*(reader.tracks for reader in readers)) == set(whole.tracks)
    assert list(ranks.entries) == list(ranks.readers)


def test_the_files_together_hold_what_the_one_file_holds(tmp_path: Path) -> None:
    built = RunBuilder(3, jitter=0.3, batchnorm=True, buckets=3)
    built.steps(4)
    built.event(1, "loss", 0.25)
    built.event(2, "loss", float("nan"))
    ranks = Ranks(exported(built, tmp_path))
    check(ranks, in_one_file(tmp_path / "run"))
    assert [member.name for member in ranks.members] == [
        MANIFEST, "rank-00000.pftrace", "rank-00001.pftrace", "rank-00002.pftrace",
    ]  # fmt: skip
    shown = [
        (rank, args["span_id"], start, end)
        for reader in ranks.readers.values()
        for rank, _, start, end, args in reader.spans
    ]
    assert sorted(shown) == sorted(
        (s["rank"], s["span_id"], s["start_ns"], s["start_ns"] + s["duration_ns"])
        for s in built.spans
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(built=any_spans(ranks=3))
def test_spans_that_overlap_in_any_way_read_back(
    tmp_path_factory: pytest.TempPathFactory, built: RunBuilder
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    check(Ranks(exported(built, folder)), in_one_file(folder / "run"))


def test_the_manifest_comes_first_and_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    ranks = Ranks(exported(built, tmp_path))
    assert ranks.members[0].name == MANIFEST
    assert b"".join(ranks.files[MANIFEST].split()).startswith(b'{"perfetto_manifest"')
    assert ranks.manifest["version"] == 1


def test_ranks_of_one_clock_are_tied_to_the_first_of_them(tmp_path: Path) -> None:
    built = RunBuilder(3)
    built.step()
    ranks = Ranks(exported(built, tmp_path))
    assert ranks.tied == {
        "rank-00001.pftrace": ("rank-00000.pftrace", 0),
        "rank-00002.pftrace": ("rank-00000.pftrace", 0),
    }
    assert "tracekit.unknown_offset" not in ranks.manifest["attributes"]
    assert ranks.machines == ["node-0"] * 3


def test_between_two_clocks_no_offset_is_made_up(tmp_path: Path) -> None:
    built = RunBuilder(4, hosts=("node-a", "node-b"))
    built.step(forward={2: 30})
    ranks = Ranks(exported(built, tmp_path))
    assert ranks.tied == {
        "rank-00001.pftrace": ("rank-00000.pftrace", 0),
        "rank-00003.pftrace": ("rank-00002.pftrace", 0),
    }
    assert ranks.manifest["attributes"]["tracekit.unknown_offset"] == "rank-00002.pftrace"
    assert ranks.machines == ["node-a", "node-a", "node-b", "node-b"]
    check(ranks, in_one_file(tmp_path / "run"))


def test_containers_that_share_a_clock_are_tied_though_their_names_differ(tmp_path: Path) -> None:
    built = RunBuilder(2, hosts=("pod-a", "pod-b"), domains=("boot:0", "boot:0"))
    built.step()
    ranks = Ranks(exported(built, tmp_path))
    assert ranks.tied == {"rank-00001.pftrace": ("rank-00000.pftrace", 0)}
    assert ranks.machines == ["pod-a", "pod-b"]


def test_machines_of_one_name_and_two_clocks_are_told_apart(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    for fact in built.facts:
        if fact["name"] == "clock" and fact["rank"] == 1:
            fact["value"] = json.dumps({"domain": "another boot"})
    ranks = Ranks(exported(built, tmp_path))
    assert ranks.machines == ["node-0", "node-0 (2)"]
    assert ranks.tied == {}


def test_ranks_of_which_nothing_is_known_are_tied_to_nobody(tmp_path: Path) -> None:
    built = RunBuilder(3)
    built.step()
    built.facts.clear()
    ranks = Ranks(exported(built, tmp_path))
    assert ranks.tied == {}
    unknown = "rank-00001.pftrace, rank-00002.pftrace"
    assert ranks.manifest["attributes"]["tracekit.unknown_offset"] == unknown
    assert ranks.machines == ["unknown host"] * 3


def test_a_rank_without_spans_has_a_file_that_is_a_trace(tmp_path: Path) -> None:
    built = RunBuilder(3)
    built.step()
    built.spans = [span for span in built.spans if span["rank"] != 1]
    ranks = Ranks(exported(built, tmp_path))
    assert list(ranks.readers["rank-00001.pftrace"].tracks.values()) == ["rank 1 (node-0)"]
    assert ranks.readers["rank-00001.pftrace"].spans == []
    assert len(ranks.readers["rank-00002.pftrace"].spans) == 6


def test_a_run_without_spans_is_a_tar_all_the_same(tmp_path: Path) -> None:
    ranks = Ranks(exported(RunBuilder(2), tmp_path))
    assert list(ranks.readers) == ["rank-00000.pftrace", "rank-00001.pftrace"]


def test_names_of_any_bytes_read_back(tmp_path: Path) -> None:
    built = RunBuilder(1)
    built.span(0, "user", 1, 2)
    odd = b'a\xff\x00"\n\xc3'
    for fact in built.facts:
        if fact["name"] == "rank":
            fact["value"] = '{"host": "n\\ud800\\u0000\\n\\"\u00e9\U0001f600"}'
    run = write_run(built, tmp_path / "run")
    spans = built.tables()["spans"]
    indices = pa.array([0], pa.int32())
    name = pa.DictionaryArray.from_arrays(indices, not_text(odd))
    for column in ("name", "lane"):
        place = spans.schema.get_field_index(column)
        spans = spans.set_column(place, spans.schema.field(column), name)
    write_table(run, "spans", spans)
    ranks = Ranks(exported(run, tmp_path))
    (machine,) = set(ranks.machines)
    assert "\u00e9\U0001f600".encode() in ranks.files[MANIFEST]
    assert machine == 'n?\x00\n"\u00e9\U0001f600'
    reader = ranks.readers["rank-00000.pftrace"]
    assert f"rank 0 ({machine})" in reader.tracks.values()
    assert 'a\ufffd\x00"\n\ufffd' in [span[1] for span in reader.spans]


def test_the_same_run_gives_the_same_bytes_that_belong_to_nobody(tmp_path: Path) -> None:
    built = RunBuilder(2, buckets=2)
    built.steps(2)
    data = exported(built, tmp_path)
    assert data == exported(tmp_path / "run", tmp_path)
    owned = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in Ranks(data).members}
    assert owned == {(0, 0, 0, "", "", 0o644)}
    assert {data[m.offset + 257 : m.offset + 265] for m in Ranks(data).members} == {b"ustar  \0"}
    assert len(data) % 512 == 0
    assert data.endswith(bytes(1024))


def test_a_rank_that_does_not_fit_into_memory_waits_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = RunBuilder(2)
    built.steps(3)
    data = exported(built, tmp_path)
    monkeypatch.setattr(perfetto, "_IN_MEMORY", 10)
    assert exported(tmp_path / "run", tmp_path) == data


def test_too_much_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    built = RunBuilder(2)
    built.steps(10)  # 12 spans each
    file = OnlyWritten()
    with (
        open_run(write_run(built, tmp_path / "run")) as run,
        pytest.raises(UsageError, match=r"--max-spans 40; these steps fit: --steps 0:2"),
    ):
        perfetto.export_per_rank(run, file, Choice(max_spans=40))  # type: ignore[arg-type]
    assert file.taken == []
    part = Ranks(exported(tmp_path / "run", tmp_path, Choice(0, 2, max_spans=40)))
    assert [len(reader.spans) for reader in part.readers.values()] == [18, 18]


def test_without_the_extra_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    built = RunBuilder(1)
    built.step()
    file = OnlyWritten()
    with (
        open_run(write_run(built, tmp_path / "run")) as run,
        pytest.raises(MissingDependency, match=r"pip install 'tracekit-blackbox\[perfetto\]'"),
    ):
        perfetto.export_per_rank(run, file)  # type: ignore[arg-type]
    assert file.taken == []


def test_other_programs_unpack_it(tmp_path: Path) -> None:
    built = RunBuilder(2)
    built.step()
    file = tmp_path / "run.tar"
    file.write_bytes(exported(built, tmp_path))
    done = subprocess.run(["tar", "-tf", file], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (list(Ranks(file.read_bytes()).files), "")
