"""Sharded, tensor-parallel and pipelined trainings in real processes: roles, phases, verdicts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.distributed.pipelining")

from tracekit.analysis import Analysis, analyze
from tracekit.dataset import open_run
from tracekit.dataset.engine import DuckDB

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("parallel_train.py")


class Run:
    """What a training left behind."""

    def __init__(self, folder: Path) -> None:
        with open_run(folder) as run:
            self.spans: list[dict[str, Any]] = run.table("spans").to_pylist()
            self.facts: list[dict[str, Any]] = run.table("facts").to_pylist()

    def roles(self) -> dict[int, dict[str, Any]]:
        return {
            fact["rank"]: json.loads(fact["value"]) for fact in self.facts if fact["name"] == "role"
        }

    def of(self, rank: int, kind: str, step: int) -> list[dict[str, Any]]:
        found = [
            span
            for span in self.spans
            if (span["rank"], span["kind"], span["step"]) == (rank, kind, step)
        ]
        return sorted(found, key=lambda span: span["start_ns"])


def launched(folder: Path, ranks: int, *arguments: str, **environ: str) -> list[str]:
    """What a training prints of its parameters, ordered by rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {
        **os.environ,
        "TRACEKIT_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT),
        **environ,
    }
    done = subprocess.run(
        [*command, str(ranks), str(SCRIPT), *arguments],
        cwd=ROOT,
        env=environment,
        timeout=280,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr, done.stderr
    return sorted(re.findall(r"parameters of \d+: [0-9a-f]{64}", done.stdout))


def start(folder: Path, ranks: int, *arguments: str) -> Path:
    """Train; returns the run directory."""
    launched(folder, ranks, *arguments)
    [run] = folder.iterdir()
    return run


def verdict(folder: Path, *, told: bool) -> Analysis:
    """Analyze a run as it is, or as if nobody had told roles."""
    with open_run(folder) as run, DuckDB() as engine:
        for name, source in run.sources.items():
            engine.register(name, source)
        if not told:
            facts = run.table("facts")
            kept = [fact for fact in facts.to_pylist() if fact["name"] != "role"]
            engine.register("facts", pa.Table.from_pylist(kept, facts.schema))
        return analyze(engine, run.coverage)


def named(analysis: Analysis) -> list[tuple[tuple[int, ...], str, str]]:
    return [(one.ranks, one.kind, one.cause) for one in analysis.stragglers]


def incomplete(analysis: Analysis) -> int:
    """How many collectives lack members."""
    return sum(int(f.evidence.get("count", 0)) for f in analysis.findings if "coverage" in f.id)


def place(**role: int) -> dict[str, int]:
    return role


def without_sizes(role: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in role.items() if key not in ("sizes", "source")}


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_sharded_ranks_are_replicas_and_their_phases_hold_the_gathers(
    kind: str, tmp_path: Path
) -> None:
    run = Run(start(tmp_path, 2, kind, "--early", "--role"))
    roles = run.roles()
    assert {rank: without_sizes(role) for rank, role in roles.items()} == {
        0: place(dp=0), 1: place(dp=1),
    }  # fmt: skip
    assert {role["source"] for role in roles.values()} == {
        "groups" if kind == "fsdp1" else "device_mesh"
    }
    said = [json.loads(fact["value"]) for fact in run.facts if fact["name"] == "rank"]
    assert sorted(one["role"]["dp"] for one in said) == [0, 1]
    for rank in range(2):
        for step in range(1, 6):
            for phase in ("forward", "backward", "optimizer"):
                assert len(run.of(rank, phase, step)) == 1, (rank, phase, step)
            [forward] = run.of(rank, "forward", step)
            calls = [c for c in run.of(rank, "comm", step) if c["parent_id"] == forward["span_id"]]
            assert [c["collective_op"] for c in calls] == ["all_gather"] * 2
            [backward] = run.of(rank, "backward", step)
            calls = [c for c in run.of(rank, "comm", step) if c["parent_id"] == backward["span_id"]]
            ops = Counter(c["collective_op"] for c in calls if c["name"] != "wait")
            assert ops["reduce_scatter"] == 2


@pytest.fixture(scope="module")
def late_in_a_mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas of two ranks that share layers; rank 3 has more to do in each of them."""
    arguments = ("mesh", "--early", "--steps", "60", "--late", "3", "--work", "16")
    return start(tmp_path_factory.mktemp("mesh"), 4, *arguments)


def test_ranks_of_a_mesh_have_its_coordinates(late_in_a_mesh: Path) -> None:
    run = Run(late_in_a_mesh)
    assert run.roles() == {
        rank: {
            "dp": rank // 2, "tp": rank % 2, "sizes": {"dp": 2, "tp": 2}, "source": "device_mesh"
        }
        for rank in range(4)
    }  # fmt: skip
    calls = Counter(
        (span["collective_group"], span["collective_seq"], span["collective_op"])
        for span in run.spans
        if span["kind"] == "comm" and span["name"] != "wait" and span["step"] in range(1, 59)
    )
    sizes = {span["collective_group"]: span["group_size"] for span in run.spans}
    assert {call: count for call, count in calls.items() if count != sizes[call[0]]} == {}
    for step in range(1, 59):
        assert len(run.of(3, "forward", step)) == len(run.of(3, "backward", step)) == 1


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
def test_the_late_one_of_ranks_that_share_layers_is_named(late_in_a_mesh: Path, told: bool) -> None:
    assert named(verdict(late_in_a_mesh, told=told)) == [((3,), "rank", "forward")]


@pytest.fixture(scope="module", params=["gpipe", "1f1b"])
def heavy_stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages; the second has more to do."""
    early = ["--early"] if request.param == "1f1b" else []
    arguments = ("pipeline", "--steps", "45", "--late", "1", "--work", "8", *early)
    return start(tmp_path_factory.mktemp(request.param), 2, *arguments)


def test_a_pipeline_s_micro_batches_are_forwards_and_backwards(heavy_stage: Path) -> None:
    run = Run(heavy_stage)
    assert {rank: without_sizes(role) for rank, role in run.roles().items()} == {
        0: place(pp=0), 1: place(pp=1),
    }  # fmt: skip
    for rank in range(2):
        for step in range(1, 45):
            for phase in ("forward", "backward"):
                spans = run.of(rank, phase, step)
                assert [span["micro_step"] for span in spans] == [0, 1, 2, 3]
                assert {span["lane"] for span in spans} == {"thread:MainThread"}
            assert len(run.of(rank, "optimizer", step)) == 1


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
def test_a_stage_with_more_to_do_is_an_imbalance_and_no_rank_is_bad(
    heavy_stage: Path, told: bool
) -> None:
    analysis = verdict(heavy_stage, told=told)
    assert named(analysis) == [((1,), "stage", "forward")]
    [finding] = [f for f in analysis.findings if f.id.startswith("straggler.")]
    assert finding.id == "straggler.stage"
    assert finding.certainty == "likely"
    assert finding.imposed_wait_ms is not None
    assert finding.imposed_wait_ms >= 0.9 * 4 * 2 * 8  # micro-batches, layers, work of each


def test_a_rank_with_two_stages_has_the_micro_batches_of_both(tmp_path: Path) -> None:
    arguments = ("looped", "--steps", "45", "--late", "1", "--work", "3")
    folder = start(tmp_path, 2, *arguments)
    run = Run(folder)
    for rank in range(2):
        for phase in ("forward", "backward"):
            numbers = Counter(span["micro_step"] for span in run.of(rank, phase, 20))
            assert numbers == {0: 2, 1: 2, 2: 2, 3: 2}
    for told in (True, False):
        analysis = verdict(folder, told=told)
        assert [(one.ranks, one.kind) for one in analysis.stragglers] == [((1,), "stage")]
        assert incomplete(analysis) == 0


@pytest.mark.parametrize("whole", [False, True], ids=["rank", "stage"])
def test_among_stages_of_replicas_a_rank_or_a_stage_is_named(whole: bool, tmp_path: Path) -> None:
    """Four processes on few cores wait for cores too; more to do stands out all the same."""
    early = ["--early"] if whole else []
    arguments = ("grid", "--steps", "70", "--late", "2", "--work", "4", *early)
    folder = start(tmp_path, 4, *arguments)
    assert Run(folder).roles() == {
        rank: {
            "dp": rank % 2, "pp": rank // 2, "sizes": {"dp": 2, "pp": 2}, "source": "device_mesh"
        }
        for rank in range(4)
    }  # fmt: skip
    who = ((2, 3), "stage") if whole else ((2,), "rank")
    for told in (True, False):
        analysis = verdict(folder, told=told)
        assert [(one.ranks, one.kind) for one in analysis.stragglers] == [who]
        assert incomplete(analysis) == 0


def test_a_delay_before_each_of_twenty_gathers_is_one_rank_s_whole_loss(tmp_path: Path) -> None:
    arguments = ("fsdp2", "--layers", "20", "--late", "1", "--steps", "50")
    folder = start(tmp_path, 2, *arguments)
    run = Run(folder)
    gathers = [c for c in run.of(1, "comm", 20) if c["collective_op"] == "all_gather"]
    assert len(gathers) == 20
    for told in (True, False):
        analysis = verdict(folder, told=told)
        assert [(one.ranks, one.cause) for one in analysis.stragglers] == [((1,), "forward")]
        assert analysis.stragglers[0].imposed_wait_ms >= 0.9 * 20 * 2


@pytest.mark.parametrize(("kind", "ranks"), [("fsdp2", 2), ("pipeline", 2)])
def test_parameters_are_equal_to_the_last_bit_with_and_without_tracing(
    kind: str, ranks: int, tmp_path: Path
) -> None:
    traced = launched(tmp_path, ranks, kind, "--steps", "8")
    assert len(list(tmp_path.iterdir())) == 1
    assert traced == launched(tmp_path, ranks, kind, "--steps", "8", TRACEKIT_DISABLED="1")
    assert len(traced) == ranks
    assert len(list(tmp_path.iterdir())) == 1
