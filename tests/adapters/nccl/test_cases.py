"""Public cases in small, made anew: the right cause, the right rank, and nothing that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.adapters.nccl.logs import Rank, alarms, gravest, ranks, verdict
from tracekit.findings import Certainty, Severity

FAILED: dict[str, tuple[str, str, str, str]] = {
    # what it is: (message, place, id, class)
    "retry exceeded, old": (
        "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
        "transport/net_ib.cc:839", "comm.error", "net_retry",
    ),
    "retry exceeded, with a peer": (
        "NET/IB : Got completion from peer 10.0.0.2<44034> with status=12 opcode=0 len=0"
        " vendor err 129 (Recv) localGid fe80::1 remoteGid fe80::2 hca mlx5_0",
        "transport/net_ib.cc:1653", "comm.error", "net_retry",
    ),
    "retry exceeded, new": (
        "NET/IB: Got completion from peer 10.0.0.2<44034> with"
        " status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  hca mlx5_0",
        "transport/net_ib/common.cc:99 (ncclIbTest)", "comm.error", "net_retry",
    ),
    "ACS": (
        "NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",
        "transport/net_ib.cc:839", "comm.error", "net_acs",
    ),
    "GID": (
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state"
        " INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.1, remote GID"
        " ::ffff:10.3.0.2",
        "misc/ibvwrap.cc:252", "comm.error", "net_gid",
    ),
    "GID, old": (
        "Call to ibv_modify_qp failed with error Connection timed out",
        "misc/ibvwrap.cc:190", "comm.error", "net_gid",
    ),
    "firewall": (
        "Net : Connect to 192.168.1.9<54263> failed : No route to host",
        "include/socket.h:409", "comm.error", "net_firewall",
    ),
    "firewall, polled": (
        "socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno"
        " 115(Operation now in progress)",
        "misc/socket.cc:484", "comm.error", "net_firewall",
    ),
    "firewall, new": (
        "socketPollConnect: connect to 10.0.0.2<29501> returned No route to host, exceeded error"
        " retry count after 35 attempts",
        "misc/socket.cc:503", "comm.error", "net_firewall",
    ),
    "docker's bridge": (
        "socketStartConnect: Connect to 172.17.0.2<38847> failed : Software caused connection"
        " abort",
        "misc/socket.cc:433", "comm.error", "net_interface",
    ),
    "docker's bridge, refused": (
        "socketStartConnect: Connect to 172.17.0.2<38847> failed : Connection refused",
        "misc/socket.cc:433", "comm.error", "net_interface",
    ),
    "no interface": (
        "Bootstrap : no socket interface found", "bootstrap.cc:45", "comm.error", "net_interface",
    ),
    "no interface in the subnet": (
        "Net : No interface found in the same subnet as remote address 10.9.0.1<4000>",
        "misc/socket.cc:250", "comm.error", "net_interface",
    ),
    "link layers": (
        "NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE."
        " Try selecting NICs of only one link type using NCCL_IB_HCA",
        "transport/net_ib.cc:1000", "comm.error", "net_interface",
    ),
    "shm": (
        "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on"
        " device (28)",
        "misc/shmutils.cc:87", "host.limit", "host_shm",
    ),
    "shm, old": (
        "Call to posix_fallocate failed : No space left on device",
        "include/shm.h:28", "host.limit", "host_shm",
    ),
    "memlock": (
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "misc/ibvwrap.cc:130", "host.limit", "host_memlock",
    ),
    "open files": (
        "ncclOsSocketTryAccept: Accept failed: Too many open files",
        "os/linux.cc:300", "host.limit", "host_files",
    ),
    "versions by an address of nothing": (
        "ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor"
        " AF_INET6(10)",
        "misc/socket.cc:680", "config.versions", "versions",
    ),
    "versions": (
        "Mismatched NCCL version detected : rank 0 version 22005 rank 1 version 21903",
        "init.cc:900", "config.versions", "versions",
    ),
    "fabric manager": (
        "Cuda failure 1 'invalid argument'", "transport/nvls.cc:165", "host.limit",
        "fabric_manager",
    ),
    "fabric manager, brackets": (
        "Cuda failure [1] 'invalid argument'", "transport/nvls.cc:165", "host.limit",
        "fabric_manager",
    ),
    "fabric manager, new": (
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1"
        " 'invalid argument'.",
        "transport/nvls.cc:210", "host.limit", "fabric_manager",
    ),
    "GPU memory": (
        "Cuda failure 2 'out of memory'", "include/alloc.h:187", "crash.oom", "gpu_oom",
    ),
    "ECC": (
        "Cuda failure 214 'uncorrectable ECC error encountered'", "enqueue.cc:1400",
        "crash.error", "gpu_ecc",
    ),
    "assertion": (
        "Cuda failure 710 'device-side assert triggered'", "enqueue.cc:1400", "crash.error",
        "gpu_assert",
    ),
    "illegal access": (
        "Cuda failure 700 'an illegal memory access was encountered'", "enqueue.cc:1400",
        "crash.error", "gpu_illegal",
    ),
    "EFA": (
        "NET/OFI Request 0x7f completed with error. RC: 20. Error: Unreachable remote",
        "process_completions:580", "comm.error", "net_firewall",
    ),
    "EFA's addresses": (
        "NET/OFI Unable to insert remote address into address vector for device 0. RC: -22",
        "void ofi::connect(int, char const*):300", "comm.error", "net_firewall",
    ),
    "sizes": (
        "NET/IB : req 0/1 tag 7 peer 10.0.0.2<4000> collective mismatch error, local size 496640"
        " remote size 65536",
        "transport/net_ib.cc:1100", "hang.mismatch", "mismatch",
    ),
    "sizes by TCP": (
        "NET/Socket : peer 10.0.0.2<4000> message truncated : receiving 524288 bytes instead of"
        " 65536. If you believe your socket network is in a healthy state, there may be a mismatch",
        "transport/net_socket.cc:500", "hang.mismatch", "mismatch",
    ),
    "one rank twice": (
        "Bootstrap Root : rank 0 of 2 ranks has already checked in", "bootstrap.cc:260",
        "config.env", "launcher",
    ),
    "misuse": (
        "Broadcast : invalid root 9 (root should be in the 0..2 range)", "misc/argcheck.cc:40",
        "crash.error", "usage",
    ),
    "a lost card": (
        "NET/IB : Unable to open device erdma_1", "transport/net_ib.cc:205", "comm.error",
        "net_port",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED)
def test_an_error_is_told_with_its_class_its_rank_and_its_line(case: str, tmp_path: Path) -> None:
    message, place, id_, cause = FAILED[case]
    job = ranks(2)
    job[0].begin()
    job[1].begin().warn(message, place)
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.evidence["class"], finding.severity) == (
        id_, cause, Severity.CRITICAL,
    )  # fmt: skip
    if cause != "same_device":
        assert finding.ranks == (1,)
    number = next(n for n, line in enumerate(job[1].lines, 1) if "WARN" in line)
    assert finding.evidence["lines"][0].startswith(f"{tmp_path}/node1.4000.log:{number}: ")
    assert finding.advice


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("retry exceeded, with a peer", "ib_write_bw"),
        ("GID", "show_gids"),
        ("firewall", "nc -zv 192.168.1.9"),
        ("docker's bridge", "NCCL_SOCKET_IFNAME"),
        ("ACS", "ACSCtl"),
        ("shm", "--ipc=host"),
        ("memlock", "ulimit -l"),
        ("open files", "ulimit -n"),
        ("fabric manager", "NCCL_NVLS_ENABLE=0"),
        ("EFA", "security group"),
        ("versions", "torch.cuda.nccl.version"),
        ("a lost card", "ibstat"),
    ],
)
def test_advice_names_the_next_command(case: str, words: str, tmp_path: Path) -> None:
    message, place, _, _ = FAILED[case]
    job = ranks(2)
    job[0].begin()
    job[1].begin().warn(message, place)
    assert words in " ".join(gravest(verdict(tmp_path, job)).advice)


def test_two_ranks_on_one_gpu_are_both_named(tmp_path: Path) -> None:
    job = ranks(2, 2)
    for rank in job:
        rank.begin().warn(
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 2000", "init.cc:590"
        )
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.ranks, finding.certainty) == (
        "config.device", (0, 1), Certainty.PROVEN,
    )  # fmt: skip


def test_the_cause_goes_by_class_not_by_who_prints_first(tmp_path: Path) -> None:
    job = ranks(4, 4)
    for rank in job[:3]:
        rank.begin().warn(
            "socketProgress: Connection closed by remote peer node0<4003>", "misc/socket.cc:49"
        )
        rank.warn("Socket recv failed while polling for opId=0x7f31", "proxy.cc:1140")
    job[3].begin().warn("Cuda failure 'out of memory'", "include/alloc.h:99")
    job[3].warn("Failed to CUDA calloc 6291456 bytes", "include/alloc.h:102")
    analysis = verdict(tmp_path, job)
    finding = gravest(analysis)
    assert (analysis.symptom, finding.id, finding.ranks) == ("oom", "crash.oom", (3,))
    assert finding.evidence["effects"] == ["rank 0", "rank 1", "rank 2"]
    assert len(alarms(analysis)) == 1


def test_a_flapping_port_comes_before_the_retries_it_causes(tmp_path: Path) -> None:
    job = ranks(2)
    job[0].healthy().warn(FAILED["retry exceeded, old"][0])
    job[1].healthy()
    for _ in range(7):
        job[1].warn("NET/IB : mlx5_3:1 Got async event : port error")
    finding = gravest(verdict(tmp_path, job))
    assert (finding.evidence["class"], finding.ranks, finding.evidence["count"]) == (
        "net_port", (1,), 7,
    )  # fmt: skip
    assert "net_retry" in finding.evidence["also"]


def test_a_closed_connection_names_the_side_that_ended_and_not_who_complains(
    tmp_path: Path,
) -> None:
    job = ranks(2)
    job[0].healthy().warn(
        "socketProgress: Connection closed by remote peer"
        " ip-172-31-45-209.us-east-2.compute.internal<32926>",
        "misc/socket.cc:49",
    )
    job[1].healthy()
    finding = gravest(verdict(tmp_path, job))
    assert "ip-172-31-45-209" in finding.title
    assert finding.severity is Severity.WARNING
    assert finding.ranks == ()


@pytest.mark.parametrize(
    "effects",
    [
        [("Socket recv failed while polling for opId=0x7fc4", "proxy.cc:1140")],
        [("Got completion with status=5 opcode=0 len=0 vendor err 249", "net_ib.cc:1653")],
        [("Tried to allocate more than 1EB", "include/alloc.h:10")],
        [("Something that nobody has heard of", "init.cc:1")],
    ],
)
def test_effects_alone_leave_it_undecided(
    effects: Sequence[tuple[str, str]], tmp_path: Path
) -> None:
    job = ranks(2)
    job[0].healthy()
    job[1].healthy()
    for message, place in effects:
        job[1].warn(message, place)
    analysis = verdict(tmp_path, job)
    assert all(f.certainty is Certainty.CANNOT_TELL for f in alarms(analysis))
    assert all(f.severity is not Severity.CRITICAL for f in analysis.findings)


# Start-up


def test_silence_after_ready_is_a_hang_in_start_up_whose_cause_cannot_be_told(
    tmp_path: Path,
) -> None:
    text = """\
node0:31:31 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
node0:31:31 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal
node0:31:31 [0] NCCL INFO Using network Socket
node0:31:31 [0] NCCL INFO rank 0 nranks 4 ready
"""
    analysis = verdict(tmp_path, text)
    finding = gravest(analysis)
    assert (analysis.symptom, analysis.phase) == ("hang", "startup")
    assert (finding.id, finding.certainty) == ("hang.missing_rank", Certainty.CANNOT_TELL)
    assert finding.evidence["lines"][0].startswith(f"{tmp_path}/job.log:4")
    advice = " ".join(finding.advice)
    for command in ("--nccl-log", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "all_reduce_perf"):
        assert command in advice


def test_who_logs_but_never_begins_is_named_by_its_host(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job[:3]:
        rank.begin()
    job[3].info("Bootstrap : Using eth0:10.0.0.4<0>")
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.ranks) == ("hang.missing_rank", (3,))
    assert "node3" in finding.title
    assert finding.certainty is Certainty.LIKELY


def test_when_all_began_and_none_finished_nobody_is_accused(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin()
    finding = gravest(verdict(tmp_path, job))
    assert (finding.ranks, finding.certainty) == ((), Certainty.CANNOT_TELL)


def test_retries_without_end_name_the_peer(tmp_path: Path) -> None:
    job = ranks(2)
    for attempt in range(1, 27):
        job[1].info(
            "socketPollConnect: connect to 10.0.0.1<42001> returned Connection refused, retrying"
            f" ({attempt}/34) after sleep for {100 * attempt} msec"
        )
    job[0].begin()
    analysis = verdict(tmp_path, job)
    told = next(f for f in analysis.findings if f.evidence.get("class") == "net_firewall")
    assert told.severity is Severity.WARNING
    assert "10.0.0.1" in told.title


# Calls


def test_ranks_in_different_collectives_are_told_side_by_side(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.healthy(calls=300)
        if rank.rank:
            rank.calls(1, "Broadcast", 53, 4)
        else:
            rank.calls(1, "Broadcast", 25503912, 6)
    analysis = verdict(tmp_path, job)
    finding = gravest(analysis)
    assert (analysis.symptom, finding.id, finding.certainty) == (
        "hang", "hang.mismatch", Certainty.PROVEN,
    )  # fmt: skip
    assert finding.evidence["number"] == 300
    assert "25503912 float16" in finding.title
    assert "ranks 1-3" in finding.title


def test_a_rank_with_fewer_calls_is_a_remark(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.healthy(calls=40 if rank.rank != 2 else 38)
    analysis = verdict(tmp_path, job)
    assert alarms(analysis) == []
    assert any(f.ranks == (2,) and f.id == "hang.missing_rank" for f in analysis.findings)


def test_silence_after_the_first_calls_over_pcie_hints_at_acs(tmp_path: Path) -> None:
    job = ranks(2, 2)
    for rank in job:
        rank.begin().connect("P2P/IPC").done().calls(1)
    analysis = verdict(tmp_path, job)
    assert alarms(analysis) == []
    assert any("NCCL_P2P_DISABLE=1" in " ".join(f.advice) for f in analysis.findings)


# Transports and links


def test_the_slow_link_of_one_rank_among_fast_ones_is_named(tmp_path: Path) -> None:
    job = ranks(16, 8)
    for rank in job:
        rank.begin().cards(200000, 100 if rank.rank == 13 else 200000).connect().done()
    job[13].host, job[13].lines = job[13].host, job[13].lines
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.severity, finding.ranks) == (
        "comm.slow_nic", Severity.CRITICAL, (13,),
    )  # fmt: skip
    assert "mlx5_1, port 1, on node1 (rank 13) came up at 100 Mb/s" in finding.title
    assert "200 Gb/s" in finding.title
    advice = " ".join(finding.advice)
    for command in ("ibstat mlx5_1", "ethtool", "ib_write_bw", "pairwise"):
        assert command in advice


def test_a_management_card_that_all_have_is_not_slow(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin().cards(400000, 400000, 25000).connect().done()
    assert alarms(verdict(tmp_path, job)) == []


def test_a_host_with_fewer_cards_is_named(tmp_path: Path) -> None:
    job = ranks(2)
    job[0].begin().connect().done()
    job[1].info("NCCL_IGNORE_NET_MISMATCH set by environment to 1.")
    job[1].info("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.2<0>", "Using network IB")
    job[1].start().connect().done()
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.ranks) == ("comm.slow_nic", (1,))
    assert finding.evidence["cards"] == {"node0": 2, "node1": 1}
    assert finding.evidence["check_disabled"]


@pytest.mark.parametrize("place", ["Failed to open libibverbs.so[.1]", "provider"])
def test_socket_fallback_tells_the_first_reason(place: str, tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        if place == "provider":
            rank.warn("NET/OFI Could not find any optimal provider", "get_ofi_provider:312")
        rank.info("Failed to open libibverbs.so[.1]")
        rank.info(f"NET/Socket : Using [0]ib0:{rank.address}<0>", "Using network Socket")
        rank.start().connect("NET/Socket/0").done()
    found = [
        f for f in verdict(tmp_path, job).findings
        if f.id == "comm.socket_fallback" or f.evidence.get("class") == "net_socket"
    ]  # fmt: skip
    assert found
    assert found[0].severity is not Severity.INFO
    expected = "optimal provider" if place == "provider" else "libibverbs"
    assert any(expected in f.title for f in found)


def test_sockets_where_no_other_network_is_there_are_a_remark(tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.begin(network="Socket").connect("NET/Socket/0").done()
    analysis = verdict(tmp_path, job)
    assert alarms(analysis) == []
    fallback = next(f for f in analysis.findings if f.id == "comm.socket_fallback")
    assert "faster" not in fallback.title


def test_one_node_by_sockets_among_others_by_infiniband(tmp_path: Path) -> None:
    job = ranks(3)
    for rank in job:
        socket = rank.rank == 1
        rank.begin(network="Socket" if socket else "IB")
        rank.connect("NET/Socket/0" if socket else "NET/IB/0/GDRDMA").done()
    finding = next(f for f in verdict(tmp_path, job).findings if f.id == "comm.socket_fallback")
    assert (finding.severity, finding.ranks) == (Severity.WARNING, (1,))


def test_gpu_direct_that_is_off_is_told_with_what_loads_it(tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.begin().info("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
        rank.connect("NET/IB/0").done()
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.severity) == ("comm.gdr_off", Severity.WARNING)
    assert "nvidia_peermem" in " ".join(finding.advice)


def test_versions_that_differ_are_told_even_without_an_error(tmp_path: Path) -> None:
    job = ranks(2)
    job[0].healthy("2.22.3")
    job[1].healthy("2.23.4")
    finding = gravest(verdict(tmp_path, job))
    assert (finding.id, finding.evidence["versions"]) == (
        "config.versions", {"2.22.3": [0], "2.23.4": [1]},
    )  # fmt: skip


def test_settings_that_differ_are_told_before_the_program_is_blamed(tmp_path: Path) -> None:
    job = ranks(2)
    job[0].info("NCCL_BUFFSIZE set by environment to 8388608.").begin()
    job[1].begin().warn(*FAILED["sizes"][:2])
    found = [f.id for f in alarms(verdict(tmp_path, job))]
    assert found == ["hang.mismatch", "config.env"]


# Nothing to see


def noisy(rank: Rank) -> None:
    rank.info(
        "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
        "NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol",
        "PROFILER/Plugin: Could not find: libnccl-profiler.so.",
        "TUNER/Plugin: Could not find: libnccl-tuner.so libnccl-net.so.",
    ).healthy()


def bare(rank: Rank) -> None:
    rank.healthy()


def ras(rank: Rank) -> None:
    rank.healthy().warn("Call to bind failed: Address already in use", "misc/socket.cc:600")
    rank.warn("RAS failed to establish a client listening socket at ::1<28028>", "ras/ras.cc:1")


def consumer(rank: Rank) -> None:
    rank.info(
        "P2P is disabled between connected GPUs 0 and 1. You can repress this message with"
        " NCCL_IGNORE_DISABLED_P2P=1."
    ).healthy()


def shutdown(rank: Rank) -> None:
    rank.healthy().end().info("[Service thread] Connection closed by localRank 1")
    rank.warn("socketProgress: Connection closed by remote peer node1<4000>", "misc/socket.cc:49")


def aborted(rank: Rank) -> None:
    rank.healthy().info(f"{rank.comm} - Abort COMPLETE")


def dma_buf(rank: Rank) -> None:
    rank.info("dlsym failed on ibv_reg_dmabuf_mr - undefined symbol, ignoring").healthy()
    rank.warn("dlsym failed on cuMemCreate - undefined symbol", "misc/cudawrap.cc:10")


def host_memory(rank: Rank) -> None:
    rank.info(
        "cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based"
        " implementation. This could be due to the container runtime disabling NUMA support."
    ).healthy()


def flushed(rank: Rank) -> None:
    rank.healthy().warn("NET/IB : Got completion with error 5, opcode 129, len 0, vendor err 244")


def far_card(rank: Rank) -> None:
    rank.begin().info(
        "GPU Direct RDMA Disabled for GPU 0 / HCA 3 (distance 7 > 5)",
        "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1 mode Default",
    )
    rank.connect().done().calls(40)


def retried(rank: Rank) -> None:
    rank.info(
        "socketPollConnect: connect to 10.0.0.1<42001> returned Connection refused, retrying"
        " (12/34) after sleep for 1200 msec"
    ).healthy()


def amd(rank: Rank) -> None:
    rank.lines += ["RCCL version : 2.22.3-HEAD:271856d", "HIP version  : 6.3.42131"]
    rank.warn('Missing "iommu=pt" from kernel command line which can lead to system instability',
              "/long/way/hipify/src/init.cc:120")  # fmt: skip
    rank.healthy()


def collnet(rank: Rank) -> None:
    rank.warn("Cannot initialize CollNet, using point-to-point network instead", "init.cc:1")
    rank.healthy()


def old(rank: Rank) -> None:
    rank.info(
        f"NET/Socket : Using [0]eth0:{rank.address}<0>",
        "NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>",
        f"comm 0x55{rank.rank:03x}0 rank {rank.rank} nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE",
        "Launch mode Parallel",
    )


@pytest.mark.parametrize(
    "scare",
    [noisy, bare, ras, consumer, shutdown, aborted, dma_buf, host_memory, flushed, far_card,
     retried, amd, collnet, old],
)  # fmt: skip
def test_healthy_logs_with_scary_lines_alarm_nobody(
    scare: Callable[[Rank], None], tmp_path: Path
) -> None:
    job = ranks(2)
    for rank in job:
        scare(rank)
    analysis = verdict(tmp_path, job)
    assert alarms(analysis) == []
    assert analysis.symptom == "healthy"
