"""Where a step goes, and when that is worth a word."""

from __future__ import annotations

import pytest

from tests.analysis.telling import how
from tracekit.analysis import Analysis, analyze
from tracekit.findings import Severity
from tracekit.testing import RunBuilder


def verdict(run: RunBuilder) -> Analysis:
    with run.engine() as engine:
        return analyze(engine)


def ids(analysis: Analysis) -> list[tuple[str, Severity]]:
    return [(finding.id, finding.severity) for finding in analysis.findings]


def test_shares_of_a_step_add_up() -> None:
    run = RunBuilder(jitter=0.3, batchnorm=True)
    run.steps(40)
    shares = verdict(run).shares
    assert shares is not None
    classes = (
        shares.compute, shares.exposed_communication, shares.data, shares.checkpoint,
        shares.eval, shares.compile, shares.gc, shares.other,
    )  # fmt: skip
    assert sum(classes) == pytest.approx(1, abs=1e-6)
    assert shares.wait + shares.queue + shares.transfer == pytest.approx(
        shares.exposed_communication
    )


@pytest.mark.parametrize(
    ("transfer", "severity"),
    [(10, None), (16, Severity.WARNING), (30, Severity.CRITICAL)],
)
def test_a_large_share_of_communication_is_said(transfer: float, severity: Severity | None) -> None:
    run = RunBuilder(transfer=transfer)
    run.steps(40)
    expected = [("comm.share", severity)] if severity else []
    assert ids(verdict(run)) == expected


def test_waiting_for_a_named_rank_is_not_the_network_s_fault() -> None:
    run = RunBuilder()
    run.steps(60, forward={2: 60})
    analysis = verdict(run)
    assert ids(analysis) == [
        ("straggler.rank", Severity.CRITICAL), ("comm.share", Severity.INFO)
    ]  # fmt: skip
    assert "rank 2" in analysis.findings[1].title


def test_ranks_that_share_cores_wait_for_a_core_too() -> None:
    run = RunBuilder(transfer=30)
    run.steps(40)
    for rank in range(4):
        run.fact("rank", {"cores": 2, "host": "node-0"}, rank)
    analysis = verdict(run)
    assert ids(analysis) == [("comm.share", Severity.WARNING)]
    assert "4 ranks share 2 cores" in analysis.findings[0].title


@pytest.mark.parametrize(
    ("backend", "device", "said"),
    [
        ("gloo", "CPU", "GLOO_SOCKET_IFNAME"),
        ("tensorflow", "CPU", "gRPC"),
        ("tensorflow", "GPU", "nccl-tests"),
        ("nccl", "GPU", "nccl-tests"),
    ],
)
def test_the_network_is_measured_as_it_is_used(backend: str, device: str, said: str) -> None:
    run = RunBuilder(transfer=30)
    run.steps(40)
    group = {"id": run.group, "name": "0", "ranks": [0, 1, 2, 3], "backend": backend}
    for rank in range(4):
        run.fact("group", group, rank)
        if backend == "tensorflow":
            run.fact("strategy", how(4, rank, devices=[f"/device:{device}:0"]), rank)
    (finding,) = [one for one in verdict(run).findings if one.id == "comm.share"]
    assert said in finding.advice[0]


def test_waiting_for_input_is_said() -> None:
    run = RunBuilder()
    run.steps(40, data=12)
    assert ids(verdict(run)) == [("data.bound", Severity.WARNING)]


def test_a_few_steps_say_nothing_about_shares() -> None:
    run = RunBuilder(transfer=60)
    run.steps(15)
    assert ids(verdict(run)) == []


def test_buckets_that_backward_hides_are_not_exposed() -> None:
    run = RunBuilder(buckets=8, transfer=2)
    run.steps(40)
    shares = verdict(run).shares
    assert shares is not None
    assert shares.exposed_communication == pytest.approx(0.25 / 35.25, rel=0.01)
    assert shares.communication_total == pytest.approx(2 / 35.25, rel=0.01)


@pytest.mark.parametrize(("backend", "tool"), [("gloo", "iperf3"), ("nccl", "nccl-tests")])
def test_a_slow_network_is_measured_with_what_the_backend_uses(backend: str, tool: str) -> None:
    run = RunBuilder(transfer=60)
    run.steps(40)
    group = {"id": run.group, "name": "0", "ranks": [0, 1, 2, 3], "backend": backend}
    run.fact("group", group, 0)
    [share] = [one for one in verdict(run).findings if one.id == "comm.share"]
    assert tool in " ".join(str(words) for words in share.advice)


def test_bandwidth_is_told_where_the_transfer_is_known() -> None:
    run = RunBuilder(transfer=1)
    run.steps(40)
    (one,) = verdict(run).collectives
    assert (one.op, one.count, one.group_size) == ("all_reduce", 40, 4)
    assert one.algbw_gbs == pytest.approx((1 << 20) / 1e6)
    assert one.busbw_gbs == pytest.approx(1.5 * (1 << 20) / 1e6)
    for span in run.spans:
        if span["kind"] == "comm":
            span["launch_ns"] = span["start_ns"] - 1  # its first bucket was sent before
    assert verdict(run).collectives[0].algbw_gbs is None


def test_throughput_needs_the_batch_of_every_rank() -> None:
    run = RunBuilder()
    run.steps(30)
    assert verdict(run).samples_per_s is None
    for rank in range(4):
        run.fact("batch_size", 32, rank)
    assert verdict(run).samples_per_s == pytest.approx(128 / 0.036)


def test_phases_timed_on_a_stream_are_compute_and_what_blocks_it_is_not() -> None:
    run = RunBuilder()
    run.steps(60, forward={2: 25})
    for span in run.spans:
        if span["kind"] in ("forward", "backward", "optimizer", "comm"):
            span.update(clock="device", lane="stream:cuda:0:7", device="cuda:0")
    analysis = verdict(run)
    assert [(one.rank, one.cause) for one in analysis.stragglers] == [(2, "forward")]
    assert analysis.shares is not None
    assert analysis.shares.compute == pytest.approx(36.75 / 51, rel=0.01)


def test_with_kernels_only_kernels_compute() -> None:
    run = RunBuilder(transfer=4)
    run.steps(40)
    for span in list(run.spans):
        if span["kind"] == "comm":
            span.update(lane="stream:0:20", clock="device")
        if span["kind"] in ("forward", "backward"):
            # half of the host's phase; in backward the first half, so communication is exposed
            end = span["start_ns"] + span["duration_ns"] // 2
            run.span(
                span["rank"], "kernel", span["start_ns"], end, "gemm", span["step"],
                lane="stream:0:7", clock="device",
            )  # fmt: skip
    shares = verdict(run).shares
    assert shares is not None
    assert shares.compute == pytest.approx((5 + 12) / 39, rel=0.01)
    assert shares.exposed_communication == pytest.approx(4 / 39, rel=0.01)
