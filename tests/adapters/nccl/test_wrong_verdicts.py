"""What a log of NCCL must not be taken for, beside what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.nccl.logs import Rank, alarms, gravest, ranks, verdict
from tracekit.findings import Certainty, Severity

DEVICE = (
    "NET/IB: ncclIbResiliencyHandleDeviceFailure: Device 0 marked as failed. Initiating recovery?"
    " {} (send comm=0x7f03e8086000, outstandingRecovery=0)"
)
PORT = "NET/IB : mlx5_0:1 Got async event : port error"


def test_the_first_network_that_failed_is_the_reason_and_later_ones_are_noise(
    tmp_path: Path,
) -> None:
    job = ranks(2)
    for rank in job:
        rank.warn("NET/OFI Could not find any optimal provider", "get_ofi_provider:312")
        rank.info("Failed to open libibverbs.so[.1]")
        rank.info(f"NET/Socket : Using [0]ens5:{rank.address}<0>", "Using network Socket")
        rank.start().connect("NET/Socket/0").done().calls(8)
    analysis = verdict(tmp_path, job)
    assert [one.id for one in alarms(analysis)] == ["comm.socket_fallback"]
    finding = gravest(analysis)
    assert "optimal provider" in finding.title
    assert "ens5" in finding.title
    assert "libibverbs" not in finding.title
    assert "security group" not in " ".join(finding.advice)


def test_traffic_over_ipoib_is_told_with_its_interface(tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.info("Failed to open libibverbs.so[.1]")
        rank.info(f"NET/Socket : Using [0]ib0:{rank.address}<0>", "Using network Socket")
        rank.start().connect("NET/Socket/0").done().calls(8)
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.severity) == ("comm.socket_fallback", Severity.WARNING)
    assert "ib0" in finding.title
    assert "libibverbs" in finding.title


def test_without_a_card_nobody_claims_that_infiniband_is_there(tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.begin(network="Socket").connect("NET/Socket/0").done().calls(8)
    analysis = verdict(tmp_path, job)
    assert alarms(analysis) == []
    assert not any("InfiniBand" in one.title for one in analysis.findings)


def test_an_address_of_the_bootstrap_that_leads_nowhere_is_an_interface(tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.info(f"Bootstrap : Using ibp12s0:10.77.0.{rank.rank + 1}<0>")
    job[1].warn(
        "socketStartConnect: Connect to 10.77.0.1<38847> failed : Software caused connection"
        " abort", "misc/socket.cc:433",
    )  # fmt: skip
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.evidence["class"]) == ("comm.error", "net_interface")
    assert "10.77.0.1" in finding.title
    assert "NCCL_SOCKET_IFNAME" in " ".join(finding.advice)


@pytest.mark.parametrize(("link", "gid"), [("RoCE", True), ("IB", False)])
def test_gids_are_looked_at_where_cards_speak_ethernet_only(
    tmp_path: Path, link: str, gid: bool
) -> None:
    job = ranks(2)
    for rank in job:
        rank.info(f"NET/IB : Using [0]mlx5_0:1/{link} ; OOB eth0:{rank.address}<0>")
        rank.info("Using network IB").start().connect().done()
    job[1].warn(
        "NET/IB : Got completion from peer 10.0.0.1<44034> with error 12, opcode 0, len 0, vendor"
        " err 129"
    )
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.ranks) == ("comm.error", (1,))
    assert "10.0.0.1" in finding.title
    assert ("NCCL_IB_GID_INDEX" in " ".join(finding.advice)) is gid


def test_queues_that_cannot_be_connected_ask_for_rails_and_gids(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin()
    for rank in job[:3]:
        rank.warn(
            "Call to ibv_modify_qp failed with 110 Connection timed out, on dev"
            f" mlx5_{rank.rank}:1, curr state INIT, next state RTR, local GID index 3, local GID"
            f" ::ffff:10.{rank.rank}.0.1, remote GID ::ffff:10.{rank.rank + 3}.0.2",
            "misc/ibvwrap.cc:252",
        )
    analysis = verdict(tmp_path, job)
    finding = gravest(analysis)
    assert (finding.id, finding.ranks, finding.evidence["class"]) == (
        "comm.error", (0, 1, 2), "net_gid",
    )  # fmt: skip
    advice = " ".join(finding.advice)
    assert "NCCL_CROSS_NIC=0" in advice
    assert "show_gids" in advice
    assert not any(one.id.startswith("hang.") for one in alarms(analysis))


def unconnected(rank: Rank, card: int, other: int, other_card: int) -> None:
    """A queue of a rank's card to another's, by addresses that tell rank and card."""
    rank.warn(
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev"
        f" mlx5_{card}:1, curr state INIT, next state RTR, local GID index 3, local GID"
        f" ::ffff:10.{card}.{rank.rank}.1, remote GID ::ffff:10.{other_card}.{other}.1",
        "misc/ibvwrap.cc:252",
    )


def test_queues_that_all_join_different_rails_tell_of_the_fabric(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin()
    for one, other in ((0, 1), (1, 0), (0, 2), (2, 0)):
        unconnected(job[one], one, other, other)
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.evidence["class"]) == ("comm.error", "net_gid")
    assert "all 4 of which both cards are known join different rails" in finding.title
    assert "mlx5_0–mlx5_1" in finding.title
    assert finding.certainty is Certainty.LIKELY
    assert "NCCL_CROSS_NIC=0" in finding.advice[0]
    assert "show_gids" in finding.advice[1]


def test_queues_of_one_rail_that_fail_too_are_not_about_rails(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin()
    for one, other in ((0, 1), (1, 0)):
        unconnected(job[one], one, other, other)
        unconnected(job[one], 5, other, 5)
    finding = gravest(verdict(tmp_path, job))
    assert "join different rails" not in finding.title
    assert finding.evidence["along_rails"] == [["mlx5_5", "mlx5_5"]] * 2
    advice = " ".join(finding.advice)
    assert "NCCL_CROSS_NIC" not in advice
    assert "show_gids" in advice


def test_addresses_that_several_cards_have_tell_no_rail(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin()
        for card in (0, 1):
            rank.warn(
                "Call to ibv_modify_qp failed with 110 Connection timed out, on dev"
                f" mlx5_{card}:1, curr state INIT, next state RTR, local GID index 3, local GID"
                f" ::ffff:192.168.0.1, remote GID ::ffff:192.168.0.{card + 1}",
                "misc/ibvwrap.cc:252",
            )
    assert "join different rails" not in gravest(verdict(tmp_path, job)).title


@pytest.mark.parametrize("cause", ["versions", "nothing"])
def test_versions_that_differ_are_told_before_the_program_is_blamed(
    tmp_path: Path, cause: str
) -> None:
    job = ranks(2)
    job[0].begin("2.20.5")
    job[1].begin("2.19.3" if cause == "versions" else "2.20.5").warn(
        "NET/IB : req 0/1 tag 7 peer 10.0.0.1<4000> collective mismatch error, local size 496640"
        " remote size 65536"
    )
    found = [one.id for one in alarms(verdict(tmp_path, job))]
    assert found == (
        ["config.versions", "hang.mismatch"] if cause == "versions" else ["hang.mismatch"]
    )


def test_an_address_of_nothing_is_told_with_both_versions(tmp_path: Path) -> None:
    job = ranks(2)
    job[0].begin("2.20.5")
    job[1].begin("2.19.3").warn(
        "ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor"
        " AF_INET6(10)", "misc/socket.cc:680",
    )  # fmt: skip
    found = alarms(verdict(tmp_path, job))
    assert {one.id for one in found} == {"config.versions"}
    assert any("2.19.3 (rank 1)" in one.title and "2.20.5" in one.title for one in found)


@pytest.mark.parametrize("network", ["IB", "Socket"])
def test_sizes_that_do_not_fit_are_told_with_settings_that_differ(
    tmp_path: Path, network: str
) -> None:
    job = ranks(2)
    job[0].info("NCCL_BUFFSIZE set by environment to 8388608.").begin(network=network)
    message = {
        "IB": "NET/IB : req 0/1 tag 7 peer 10.0.0.1<4000> collective mismatch error, local size"
              " 496640 remote size 65536",
        "Socket": "NET/Socket : peer 10.0.0.1<4000> message truncated : receiving 524288 bytes"
                  " instead of 65536. If you believe your socket network is in a healthy state,"
                  " there may be a mismatch",
    }[network]  # fmt: skip
    job[1].begin(network=network).warn(message)
    found = alarms(verdict(tmp_path, job))
    assert {one.id for one in found} == {"hang.mismatch", "config.env"}
    finding = next(one for one in found if one.id == "hang.mismatch")
    assert finding.certainty is Certainty.LIKELY
    assert "settings or versions" in finding.title


def test_a_card_that_a_job_goes_on_without_is_no_crash(tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.healthy()
    job[0].warn(PORT).warn(DEVICE.format("Yes")).warn(PORT)
    analysis = verdict(tmp_path, job)
    assert all(one.certainty is Certainty.CANNOT_TELL for one in alarms(analysis))
    assert not any(one.severity is Severity.CRITICAL for one in analysis.findings)
    assert analysis.symptom != "crash"
    assert any("marked as failed" in str(one.evidence.get("lines")) for one in analysis.findings)


@pytest.mark.parametrize(
    "end",
    [DEVICE.format("No"), "NET/IB: Fatal error. Detected 2 failed devices"],
)
def test_a_job_that_cannot_go_on_without_its_cards_names_them(tmp_path: Path, end: str) -> None:
    job = ranks(2)
    for rank in job:
        rank.healthy()
    if "Fatal" in end:
        job[0].warn(DEVICE.format("Yes"))
    job[0].warn(end)
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.evidence["class"], finding.severity) == (
        "comm.error", "net_port", Severity.CRITICAL,
    )  # fmt: skip


def test_a_lost_card_is_told_with_the_guard_that_was_off(tmp_path: Path) -> None:
    job = ranks(2)
    job[0].begin().connect("NET/IB/0/GDRDMA").connect("NET/IB/1/GDRDMA").done().calls(1)
    job[1].info("NCCL_IGNORE_NET_MISMATCH set by environment to 1.")
    job[1].warn("NET/IB : Unable to open device erdma_1", "transport/net_ib.cc:205")
    job[1].info("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.2<0>", "Using network IB")
    job[1].start().connect("NET/IB/0/GDRDMA").done().calls(1)
    found = alarms(verdict(tmp_path, job))
    assert {one.ranks for one in found} == {(1,)}
    counted = next(one for one in found if one.id == "comm.slow_nic")
    assert counted.evidence["cards"] == {"node0": 2, "node1": 1}
    assert counted.evidence["check_disabled"]
    assert not any(one.id.startswith("hang.") for one in found)
