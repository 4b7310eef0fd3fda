"""A recorded training of two workers becomes a run like any other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

import tracekit
import tracekit.report as report
from tests.adapters.xplane import by_hand, runs, spaces
from tracekit.adapters.xplane._intervals import Pair, bridge, minus, union
from tracekit.adapters.xplane._names import What, function_of, kernel_op, role_of_name
from tracekit.analysis import analyze
from tracekit.analysis.queries import query
from tracekit.dataset import DuckDB, open_run
from tracekit.model import group_id


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The recorded profile as a run."""
    intake = runs.imported([spaces.recorded(tmp_path / "logs")], tmp_path / "run")
    assert intake.skipped == []
    assert len(intake.read) == 2
    return tmp_path / "run"


def test_the_steps_are_those_the_workers_took(run: Path) -> None:
    rows = runs.spans(run)
    rows = rows.filter(pc.equal(rows["kind"], "step")).sort_by("start_ns").to_pylist()
    for worker in (0, 1):
        found = [row for row in rows if row["rank"] == worker]
        assert [row["step"] for row in found] == [10, 11, 12, 13]
        for row, (_, start, end) in zip(found, spaces.marks(worker), strict=True):
            # The worker looked at time.time_ns() just outside of the step that it marked.
            assert start - 1_000_000 <= row["start_ns"] <= start + 1_000_000
            assert abs(row["start_ns"] + row["duration_ns"] - end) <= 1_000_000


def test_each_collective_is_one_call_of_both_workers(run: Path) -> None:
    rows = runs.spans(run)
    calls = rows.filter(
        pc.and_(pc.equal(rows["kind"], "comm"), pc.not_equal(rows["name"], "wait"))
    ).to_pylist()
    keys = {
        worker: sorted(
            (row["step"], row["collective_op"], row["collective_group"], row["collective_seq"])
            for row in calls
            if row["rank"] == worker
        )
        for worker in (0, 1)
    }
    assert len(keys[0]) == 8
    assert keys[0] == keys[1]
    assert {(row["collective_op"], row["group_size"]) for row in calls} == {("all_reduce", 2)}
    assert {row["collective_group"] for row in calls} == {group_id(range(2))}
    for row in calls:
        (other,) = (
            one
            for one in calls
            if one["rank"] != row["rank"] and one["collective_seq"] == row["collective_seq"]
        )
        latest = max(row["start_ns"], other["start_ns"])
        assert latest < min(r["start_ns"] + r["duration_ns"] for r in (row, other))


@pytest.mark.parametrize("workers", [(0,), (1,), (0, 1)])
def test_shares_are_those_summed_by_hand(tmp_path: Path, workers: tuple[int, ...]) -> None:
    logs = spaces.recorded(tmp_path / "logs", workers)
    runs.imported([logs], tmp_path / "run")
    rows = runs.spans(tmp_path / "run")
    rows = rows.filter(pc.equal(rows["kind"], "step")).sort_by("start_ns")
    by_worker = []
    for worker in workers:
        steps = [
            (row["step"], row["start_ns"], row["start_ns"] + row["duration_ns"])
            for row in rows.filter(pc.equal(rows["rank"], worker)).to_pylist()
        ]
        by_worker.append(by_hand.shares(spaces.recorded_bytes(worker), steps))
    shares = runs.verdict(tmp_path / "run").shares
    assert shares is not None
    hand = {kind: sum(one[kind] for one in by_worker) / len(by_worker) for kind in by_worker[0]}
    assert 0.3 < hand["comm"] < 0.8
    assert shares.exposed_communication == pytest.approx(hand["comm"], abs=0.02)
    assert shares.compute == pytest.approx(hand["compute"], abs=0.05)
    assert shares.data == pytest.approx(hand["data"], abs=0.02)


def test_a_window_has_few_spans(run: Path) -> None:
    """Thousands of operations a step become tens of spans."""
    assert len(runs.spans(run)) < 2 * 4 * 40


def test_a_healthy_run_accuses_nobody(run: Path) -> None:
    result = runs.verdict(run)
    assert result.stragglers == ()
    assert result.run.ranks == (0, 1)
    assert result.run.missing_ranks == ()
    assert result.clock.aligned


def test_one_worker_of_two_says_which_is_missing(tmp_path: Path) -> None:
    logs = spaces.recorded(tmp_path / "logs", [1])
    runs.imported([logs], tmp_path / "run")
    result = runs.verdict(tmp_path / "run")
    assert result.run.ranks == (1,), "the rank is what the profile names as its task"
    assert result.run.missing_ranks == (0,)
    assert "coverage.partial" in {finding.id for finding in result.findings}


def test_who_comes_late_is_found(tmp_path: Path) -> None:
    steps = 24
    times = {
        0: [10 * step + 4 for step in range(steps)],
        1: [10 * step + 7 for step in range(steps)],
    }
    for rank, arrive in times.items():
        path = tmp_path / "logs" / f"{rank}.pb"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(spaces.worker(rank, arrive))
    runs.imported([tmp_path / "logs"], tmp_path / "run")
    result = runs.verdict(tmp_path / "run")
    (straggler,) = result.stragglers
    assert (straggler.rank, straggler.cause) == (1, "backward")
    shares = result.shares
    assert shares is not None
    assert shares.compute == pytest.approx((3 + 6) / 20 + 0.1, abs=0.001)
    assert shares.exposed_communication == pytest.approx((4 + 1) / 20, abs=0.001)
    assert shares.wait == pytest.approx(3 / 20, abs=0.001)
    assert shares.data == pytest.approx(0.1, abs=0.001)


def test_slow_input_is_called_input_and_not_what_prepares_it(tmp_path: Path) -> None:
    for rank, late in ((0, 0), (1, 3)):
        arrive = [10 * step + 4 + late for step in range(24)]
        (tmp_path / f"{rank}.pb").write_bytes(spaces.worker(rank, arrive, data=1 + late))
    runs.imported([tmp_path / "0.pb", tmp_path / "1.pb"], tmp_path / "run")
    result = runs.verdict(tmp_path / "run")
    (straggler,) = result.stragglers
    assert (straggler.rank, straggler.cause) == (1, "data")
    assert result.shares is not None
    assert result.shares.data == pytest.approx((1 + 4) / 20, abs=0.001)


def test_steps_nobody_marked_are_calls_of_the_function_that_trains(tmp_path: Path) -> None:
    ms = spaces.MS

    def worker(rank: int, first: int) -> bytes:
        call = "EagerLocalExecute: __inference_train_step_9"
        python = [spaces.Event(call, (10 * s + 2) * ms, 7 * ms) for s in range(first, 5)]
        told = {"device": f"/job:worker/replica:0/task:{rank}/device:CPU:0"}
        python.append(spaces.Event("RemoteCallOp", 50 * ms, 1, told))
        comm = [spaces.group(2, 49 * ms)]
        comm += [spaces.reduce((10 * s + 4) * ms, 3 * ms, 200 + s) for s in range(first, 5)]
        plane = spaces.plane("/host:CPU", {"python": python, "collective_ops/1": comm})
        return spaces.space(plane)

    (tmp_path / "a.pb").write_bytes(worker(0, 0))
    (tmp_path / "b.pb").write_bytes(worker(1, 1))
    runs.imported([tmp_path / "a.pb", tmp_path / "b.pb"], tmp_path / "run")
    rows = runs.spans(tmp_path / "run")
    steps = rows.filter(pc.equal(rows["kind"], "step")).sort_by("start_ns").to_pylist()
    assert [row["step"] for row in steps if row["rank"] == 0] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in steps if row["rank"] == 1] == [1, 2, 3, 4], "by their overlap"


def test_kernels_of_a_device_are_read_with_its_clock(tmp_path: Path) -> None:
    ms = spaces.MS
    for rank in (0, 1):
        told = {"device": f"/job:worker/replica:0/task:{rank}/device:GPU:0"}
        python = [spaces.step(s, 10 * s * ms, 10 * ms) for s in range(3)]
        python.append(spaces.Event("RemoteCallOp", 0, 1, told))
        comm = [spaces.group(2)]
        comm += [spaces.reduce((10 * s + 1) * ms, 1 * ms, 300 + s) for s in range(3)]
        host = spaces.plane("/host:CPU", {"python": python, "collective_ops/1": comm})
        nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        device = spaces.plane(
            "/device:GPU:0",
            {
                "Stream #14(Compute)": [
                    spaces.Event("ampere_sgemm_128x64_nn", (10 * s + k) * ms, ms)
                    for s in range(3)
                    for k in (1, 2, 3)
                ],
                "Stream #20(Nccl)": [
                    spaces.Event(nccl, (10 * s + 3) * ms, 5 * ms) for s in range(3)
                ],
                "Stream #15(MemcpyH2D)": [
                    spaces.Event("MemcpyH2D", 10 * s * ms, ms) for s in range(3)
                ],
                "XLA Modules": [spaces.Event("all of it", 0, 30 * ms)],
            },
        )
        (tmp_path / f"{rank}.pb").write_bytes(spaces.space(host, device))
    runs.imported([tmp_path / "0.pb", tmp_path / "1.pb"], tmp_path / "run")
    rows = runs.spans(tmp_path / "run").to_pylist()
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("kernel", "memcpy")}
    assert [row["duration_ns"] for row in by_kind["kernel"]] == [3 * ms] * 6
    assert {row["lane"] for row in by_kind["kernel"]} == {"stream:0:14"}
    assert {row["device"] for row in by_kind["kernel"]} == {"cuda:0"}
    assert len(by_kind["memcpy"]) == 6
    calls = [row for row in rows if row["kind"] == "comm" and row["name"] != "wait"]
    assert {row["clock"] for row in calls} == {"device"}
    assert {(row["collective_op"], row["collective_dtype"]) for row in calls} == {
        ("all_reduce", "float32")
    }
    result = runs.verdict(tmp_path / "run")
    assert result.shares is not None
    assert result.shares.compute == pytest.approx(0.3)
    assert result.shares.exposed_communication == pytest.approx(0.4)
    assert result.shares.communication_total == pytest.approx(0.5)


def test_devices_of_a_worker_take_part_in_one_call(tmp_path: Path) -> None:
    ms = spaces.MS
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    for rank in (0, 1):
        told = {"device": f"/job:worker/replica:0/task:{rank}/device:GPU:0"}
        python = [spaces.step(0, 0, 10 * ms), spaces.Event("RemoteCallOp", 0, 1, told)]
        comm = {
            f"collective_ops/{device}": [spaces.group(4), spaces.reduce(1 * ms + device, ms, 300)]
            for device in (0, 1)
        }
        host = spaces.plane("/host:CPU", {"python": python, **comm})
        devices = [
            spaces.plane(
                f"/device:GPU:{device}",
                {"Stream #20(Nccl)": [spaces.Event(nccl, 3 * ms + rank * ms, 5 * ms)]},
            )
            for device in (0, 1)
        ]
        (tmp_path / f"{rank}.pb").write_bytes(spaces.space(host, *devices))
    runs.imported([tmp_path / "0.pb", tmp_path / "1.pb"], tmp_path / "run")
    result = runs.verdict(tmp_path / "run")
    assert (result.run.world_size, result.run.missing_ranks) == (2, ())
    (called,) = [one for one in result.collectives if one.group is not None]
    assert (called.group_size, called.count) == (2, 1)
    assert called.wait_ms == pytest.approx(0.5)


def test_the_chief_is_the_first_rank(tmp_path: Path) -> None:
    for name, (job, index) in {"a": ("worker", 1), "b": ("chief", 0), "c": ("worker", 0)}.items():
        told = {"device": f"/job:{job}/replica:0/task:{index}/device:CPU:0"}
        python = [spaces.step(0, 0, spaces.MS), spaces.Event("RemoteCallOp", 0, 1, told)]
        python.append(spaces.Event(f"{name}:MatMul", 0, 1000))
        plane = spaces.plane("/host:CPU", {"python": python})
        (tmp_path / f"{name}.pb").write_bytes(spaces.space(plane))
    runs.imported([tmp_path / f"{name}.pb" for name in "abc"], tmp_path / "run")
    with open_run(tmp_path / "run") as run:
        facts = run.table("facts").to_pylist()
    ranks = {
        Path(json.loads(fact["value"])["path"]).name: fact["rank"]
        for fact in facts
        if fact["name"] == "import"
    }
    assert ranks == {"b.pb": 0, "c.pb": 1, "a.pb": 2}


def test_sessions_of_a_worker_are_one_after_another(tmp_path: Path) -> None:
    """Without a task workers are known by their log directory and file."""
    ms = spaces.MS
    for session in (0, 1):
        for host in ("node-2", "node-10"):
            call = "EagerLocalExecute: __inference_step_9"
            at = session * 1000 * ms
            python = [spaces.Event(call, at + 10 * s * ms, 7 * ms) for s in range(3)]
            ops = [spaces.Event("a:MatMul", at + 10 * s * ms, 5 * ms) for s in range(3)]
            folder = tmp_path / "plugins" / "profile" / f"session-{session}"
            folder.mkdir(parents=True, exist_ok=True)
            plane = spaces.plane("/host:CPU", {"python": python, "tf_Compute/1": ops})
            (folder / f"{host}.xplane.pb").write_bytes(spaces.space(plane, host=host))
    runs.imported([tmp_path / "plugins"], tmp_path / "run")
    rows = runs.spans(tmp_path / "run")
    steps = rows.filter(pc.equal(rows["kind"], "step")).sort_by("start_ns").to_pylist()
    for rank in (0, 1):
        assert [row["step"] for row in steps if row["rank"] == rank] == [0, 1, 2, 3, 4, 5]
    ids = [(row["rank"], row["span_id"]) for row in rows.to_pylist()]
    assert len(ids) == len(set(ids))
    result = runs.verdict(tmp_path / "run")
    assert [one.host for one in result.ranks] == ["node-2", "node-10"]


def test_torch_and_tensorflow_come_out_of_the_same_query_with_the_same_columns(
    run: Path, tmp_path: Path
) -> None:
    session = tracekit.start(run="ours", dir=str(tmp_path), rank=0, world_size=1, agent=False)
    assert session is not None
    with tracekit.step(0), tracekit.span("forward", kind="forward"):
        pass
    tracekit.stop()
    columns = []
    for path in (run, session.run_dir):
        with open_run(path) as opened, DuckDB() as engine:
            for name, source in opened.sources.items():
                engine.register(name, source)
            tables = {name: opened.table(name).schema for name in ("spans", "events", "facts")}
            asked = engine.sql(query("overview"))
            told = report.json_object(analyze(engine, opened.coverage))
        assert {"step", "forward"} <= set(asked["kind"].to_pylist())
        columns.append((tables, asked.schema, set(told), set(told["shares"])))
    assert columns[0] == columns[1]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("CollectiveReduceV2:CollectiveReduceV2", What.COLLECTIVE),
        ("allgather/CollectiveGatherV2_1:CollectiveGatherV2", What.COLLECTIVE),
        ("sequential/dense/Relu:_MklNativeFusedMatMul", What.FORWARD),
        ("gradient_tape/sequential/dense/MatMul/MatMul_1:_MklMatMul", What.BACKWARD),
        ("SGD/update_0_2/mul_1:Mul", What.OPTIMIZER),
        ("Adam/Adam/update/ResourceApplyAdam:ResourceApplyAdam", What.OPTIMIZER),
        ("augment/PyFunc:PyFunc", What.FORWARD),
        ("IteratorGetNextOp::DoCompute", What.DATA),
        ("IteratorGetNext:IteratorGetNext", What.NOTHING),
        ("while/body/PartitionedCall:PartitionedCall", What.NOTHING),
        ("ExecutorState::Process", What.NOTHING),
        ("EagerLocalExecute: __inference_train_function_1297", What.CALL),
        ("EagerLocalExecute: _EagerConst", What.NOTHING),
        ("EagerLocalExecute: MatMul", What.FORWARD),
        ("Iterator::Root::Prefetch", What.NOTHING),
        ("", What.NOTHING),
    ],
)
def test_names_stand_for_what_runs(name: str, what: What) -> None:
    assert role_of_name(name) is what


def test_a_function_is_known_by_its_name_whatever_trace_of_it_runs() -> None:
    assert function_of("EagerLocalExecute: __inference_one_step_1177") == "one_step"
    assert function_of("EagerLocalExecute: MatMul") is None


def test_nccls_kernels_tell_operation_and_type() -> None:
    assert kernel_op("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)") == ("all_reduce", "float32")
    assert kernel_op("ncclKernel_AllGather_RING_LL_Sum_int8_t(x)") == ("all_gather", "int8")
    assert kernel_op("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)") == (
        "reduce_scatter",
        "bfloat16",
    )
    assert kernel_op("sgemm") is None


def test_sets_of_intervals() -> None:
    def pair(*times: tuple[int, int]) -> Pair:
        found = np.array(times, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def listed(found: Pair) -> list[tuple[int, int]]:
        return list(zip(found[0].tolist(), found[1].tolist(), strict=True))

    assert listed(union(*pair((5, 6), (0, 2), (1, 4)))) == [(0, 4), (5, 6)]
    assert listed(minus(pair((0, 10)), pair((2, 3), (8, 12)))) == [(0, 2), (3, 8)]
    assert listed(bridge(pair((0, 1), (2, 3), (10, 11)), 1)) == [(0, 3), (10, 11)]
    assert listed(bridge(pair((0, 1), (2, 3), (10, 11)), 8)) == [(0, 11)]
