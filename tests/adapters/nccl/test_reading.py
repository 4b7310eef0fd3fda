"""Lines of every launcher and release, damaged ones too, become processes, jobs and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.nccl_log import HOSTILE
from tests.adapters.nccl.logs import Rank, alarms, judged, ranks, read, verdict
from tracekit.adapters.nccl_log import NcclLog, NcclLogImporter, read_logs, recognize
from tracekit.adapters.nccl_log._scanner import Scanner
from tracekit.adapters.nccl_log._splits import child_hash
from tracekit.adapters.nccl_log._state import Process
from tracekit.adapters.nccl_log._table import meanings

LINE = "gpu-7:4001:4008 [3] NCCL INFO Using network IB"


def only(log: NcclLog) -> Process:
    (job,) = log.jobs
    (process,) = job.processes
    return process


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (LINE, None),
        (f"[1,12]<stdout>:{LINE}", 12),
        (f"Fri Aug 11 12:31:45 2023[1,12]<stdout>:{LINE}", 12),
        (f"2019-06-02T16:13:44.884Z: [1,12]<stdout>:{LINE}", 12),
        (f"12: {LINE}", 12),
        (f" 12: {LINE}", 12),
        (f"10.10.23.10: {LINE}", None),
        (f"compute-dy-p4d-5: {LINE}", None),
        (f"[default0]:{LINE}", None),
        (f"[rank12]:{LINE}", 12),
        (f"[0] {LINE}", None),
        (f"(RayWorkerWrapper pid=4009, ip=10.0.0.2) {LINE}", None),
        (f"\x1b[36m(RayWorkerWrapper pid=4009, ip=10.0.0.2)\x1b[0m {LINE} [repeated 6x]", None),
        (f"  | 2024-11-28T07:42:14.532Z | {LINE}", None),
        (f"2024-05-01T10:00:00.123456789Z stdout F {LINE}", None),
        (f"[2024-02-27T21:35:28.705869Z] fa88a9df [rank=12] || {LINE}", 12),
        (f"451 {LINE}", None),
        (f"[2024-05-01 10:00:00] {LINE}", None),
        (f"[1,12]<stdout>:[2024-05-01 10:00:00.123] {LINE}", 12),
        (f"2024-05-01T10:00:00.123-07:00{LINE}", None),
        (f"2024-05-01T10:00:00.123Z{LINE}", None),
        (f" 43%|███       | 12/28 [00:10<00:12]\r{LINE}\r", None),
    ],
)
def test_a_line_is_found_behind_every_prefix(line: str, rank: int | None, tmp_path: Path) -> None:
    process = only(read(tmp_path, f"{line}\n{line}\n"))
    assert (process.host, process.pid, process.lines) == ("gpu-7", 4001, 2)
    assert process.outer_rank == rank
    assert process.network is not None
    assert process.network[0].startswith("IB")


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("h:1:2 [0] init.cc:12 NCCL WARN Duplicate GPU detected : rank 0 and rank 1", "init.cc:12"),
        ("h:1:2 [0] init.cc:12 (f) NCCL WARN Duplicate GPU detected : rank 0", "init.cc:12 (f)"),
        ("h:1:2 [0] external/nccl_archive/src/init.cc:12 NCCL WARN Duplicate GPU detected", ""),
        ("h:1:2 [0] void f(int, char const*):12 NCCL WARN Duplicate GPU detected", "void f(int,"),
        (
            "[2024-05-01 10:00:00] h:1:2 [0] a.cc:1 NCCL WARN Duplicate GPU detected : rank 0",
            "a.cc",
        ),
        ("NCCL WARN Duplicate GPU detected : rank 0 and rank 1", ""),
        ("[3] NCCL WARN Duplicate GPU detected : rank 0 and rank 1", ""),
    ],
)
def test_a_warning_is_found_with_the_place_it_is_printed_from(
    line: str, level: str, tmp_path: Path
) -> None:
    (notice,) = only(read(tmp_path, line)).notices.values()
    assert notice.cause == "same_device"
    assert notice.where.startswith(level)


def test_trace_and_call_lines_count(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "h:1:2 [0] 12.345678 initTransportsRank:55 NCCL TRACE comm 0x5 rank 3 nranks 4 cudaDev 0\n"
        "h:1:2 NCCL CALL ncclAllReduce(7f00,7f00,1024,7,0,0,0x5,0x9)\n"
        "h:1:2 NCCL CALL ncclGroupEnd()\n",
    )
    process = only(log)
    comm = process.comms[b"0x5"]
    assert (comm.rank, comm.nranks) == (3, 4)
    assert comm.calls is not None
    assert comm.calls.count == 1


def test_glued_lines_are_taken_apart(tmp_path: Path) -> None:
    text = (
        "n0:1:2 [0] NCCL INFO Using network IB\nn1:1:2 [0] NCCL INFO Using network IB\n"
        "n0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/IPC"
        "n1:1:2 [0] NCCL INFO Connected all rings"
        "n0:1:2 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1\n"
    )
    log = read(tmp_path, text)
    processes = {p.host: p for job in log.jobs for p in job.processes}
    assert set(processes) == {"n0", "n1"}
    assert processes["n0"].via == {"P2P/IPC": 1}
    assert processes["n1"].stage == "all rings"
    assert len(processes["n0"].notices) == 1


@pytest.mark.parametrize(
    "cut",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("nranks", "nran\nks"),
        lambda text: text.replace(" ", "  "),
        lambda text: text.replace("[", ""),
        lambda text: text.replace("opCount", "opCo\x00unt"),
        lambda text: "".join(reversed(text)),
    ],
)
def test_cut_lines_raise_nothing(cut: Callable[[str], str], tmp_path: Path) -> None:
    text = "\n".join(Rank(0).healthy().warn("Cuda failure 2 'out of memory'").lines)
    verdict(tmp_path, cut(text)) if "NCCL" in cut(text) else read(tmp_path, cut(text))


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-le"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: b"\0" * 4096 + text.encode() + b"\0" * 10,
        lambda text: b"\xff\xfe\x80junk \xc3\n" + text.encode(),
        lambda text: "训练开始 第一步\n".encode("gb18030") + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("NCCL INFO", "\x1b[32mNCCL INFO\x1b[0m").replace(
            "\x1b[0m", "").replace("\x1b[32m", "").encode(),
    ],
)  # fmt: skip
def test_encodings_are_no_obstacle(encode: Callable[[str], bytes], tmp_path: Path) -> None:
    raw = encode("\n".join(Rank(1, 2).healthy().lines) + "\n")
    assert recognize(raw[: 1 << 16])
    process = only(read(tmp_path, raw))
    (comm,) = process.all_comms
    assert (comm.rank, comm.nranks, comm.hash) == (1, 2, "0xb0bab0ba")
    assert comm.calls is not None
    assert comm.calls.count == 40


@pytest.mark.parametrize(
    ("message", "rank", "state"),
    [
        ("comm 0x5 rank 3 nranks 4 cudaDev 1 nvmlDev 1 - Init COMPLETE", 3, "complete"),
        ("comm 0x5 rank 3 nranks 4 cudaDev 1 busId 1000 - Init COMPLETE", 3, "complete"),
        (
            "comm 0x5 rank 3 nranks 4 cudaDev 1 busId 1000 commId 0x7 - Init COMPLETE", 3,
            "complete",
        ),
        (
            "comm 0x5 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 1000 commId 0x7 - Init START", 3,
            "start",
        ),
        (
            "ncclCommInitRankConfig comm 0x5 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 1000 commId"
            " 0x7 - Init START", 3, "start",
        ),
        (
            "ncclCommSplit comm 0x5 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 1000 parent 0x9"
            " splitCount 1 color 5 key 0- Init START", 3, "start",
        ),
        (
            "[Rank 3] ncclCommInitRank comm 0x5 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 1000"
            " commId 0x7 - Init START", 3, "start",
        ),
        ("comm 0x5 rank 3 nranks 4 cudaDev 1 busId 1000 - Destroy COMPLETE", 3, "destroy"),
        ("comm 0x5 rank 3 nRanks 4 cudaDev 1 busId 1000 - Abort START", 3, "abort"),
    ],
)  # fmt: skip
def test_communicators_of_every_release(
    message: str, rank: int, state: str, tmp_path: Path
) -> None:
    log = read(tmp_path, f"h:1:2 [1] NCCL INFO {message}\n")
    (fact,) = [row for row in log.rows("run").facts if row.name == "communicator"]
    assert (fact.value["rank"], fact.value["nranks"], fact.value["state"]) == (rank, 4, state)


@pytest.mark.parametrize(
    ("message", "cards"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>", ["mlx5_0"]),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB e:1<0>", ["mlx5_0", "mlx5_1"]),
        ("NET/IB : Using [0]rdma_0:1:2:0/IB ; OOB eth0:10.0.0.1<0>", ["rdma_0"]),
        ("NET/IB: [0] mlx5_9:uverbs9:1/IB provider=Mlx5 speed=400000 context=0x0", ["mlx5_9"]),
        ("  + PCI[24.0] - NIC/2000", []),
        ("     + NET[25.0] - NET/0 (1a7d7b0003e3ceb8/1/25.000000)", ["NET/0"]),
    ],
)
def test_network_cards(message: str, cards: list[str], tmp_path: Path) -> None:
    log = read(tmp_path, f"h:1:2 [1] NCCL INFO {message}\nh:1:2 [1] NCCL INFO Using network IB\n")
    (fact,) = [row for row in log.rows("run").facts if row.name == "network"]
    assert [card["name"] for card in fact.value["hcas"]] == cards
    if "speed=" in message:
        assert fact.value["hcas"][0]["speed_gbs"] == 50.0


def test_facts_say_how_ranks_are_connected(tmp_path: Path) -> None:
    process = Rank(0, 4).begin()
    process.connect("P2P/CUMEM/read").connect("SHM/direct/direct").connect("NET/IB/0(2)/GDRDMA")
    process.connect("NET/AWS Libfabric/0/GDRDMA(PCI)/Shared").done()
    process.info("NCCL_IB_HCA set by environment to mlx5", "NCCL_BUFFSIZE set by environment to 4.")
    facts = read(tmp_path, [process]).rows("run").facts
    network = next(row for row in facts if row.name == "network").value
    assert network["connections"] == {"P2P": 2, "SHM": 2, "NET": 4}
    assert (network["gdr"], network["channels"]) == (True, 2)
    assert network["net_kinds"] == ["AWS Libfabric", "IB"]
    environment = next(row for row in facts if row.name == "environment").value
    assert environment == {"NCCL_BUFFSIZE": "4", "NCCL_IB_HCA": "mlx5"}
    nccl = next(row for row in facts if row.name == "nccl")
    assert nccl.value == {"version": "2.21.5", "cuda": "12.4"}
    assert nccl.source == f"{tmp_path}/node0.4000.log:2"


def test_bare_versions_belong_to_the_process_that_speaks_next(tmp_path: Path) -> None:
    log = read(tmp_path, f"NCCL version 2.19.3+cuda12.3\n{LINE}\n")
    version = only(log).version
    assert version is not None
    assert version[:2] == ("2.19.3", "12.3")


# Times


def test_start_up_is_a_span_where_lines_have_times(tmp_path: Path) -> None:
    head = "[2024-05-01 10:00:{}] h:1:2 [0] NCCL INFO "
    comm = "comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7"
    text = "\n".join(
        [
            head.format("01") + f"ncclCommInitRank {comm} - Init START",
            head.format("04") + "Init timings - ncclCommInitRank: rank 0 nranks 2 total 3.00"
            " (kernels 0.50, alloc 0.10, bootstrap 2.00, allgathers 0.0, topo 0.1, graphs 0.1,"
            " connections 0.2, rest 0.0)",
            head.format("04") + f"ncclCommInitRank {comm} - Init COMPLETE",
        ]
    )
    spans = read(tmp_path, text).rows("run").spans
    whole, *phases = spans
    assert (whole["name"], whole["kind"], whole["duration_ns"]) == (
        "nccl.comm.init", "init", 3_000_000_000,
    )  # fmt: skip
    assert whole["start_ns"] == 1_714_557_601_000_000_000
    assert [(span["name"], span["duration_ns"]) for span in phases][2] == (
        "nccl.init.bootstrap", 2_000_000_000,
    )  # fmt: skip
    assert all(span["parent_id"] == whole["span_id"] for span in phases)


def test_a_start_up_without_an_end_is_open(tmp_path: Path) -> None:
    job = ranks(2, prefix="2024-05-01T10:00:00Z ")
    for rank in job:
        rank.begin()
    spans = read(tmp_path, job).rows("run").spans
    assert [span["is_open"] for span in spans] == [True, True]


def test_calls_have_order_and_counts_and_never_a_time(tmp_path: Path) -> None:
    job = ranks(2, prefix="2024-05-01T10:00:00Z ")
    for rank in job:
        rank.healthy(calls=3).calls(2, "Broadcast")
    rows = read(tmp_path, job).rows("run")
    told = [row.value for row in rows.facts if row.name == "nccl_calls"]
    assert [one["ops"] for one in told] == [{"AllReduce": 3, "Broadcast": 2}] * 2
    assert {span["kind"] for span in rows.spans} == {"init"}
    last = [row.value for row in rows.facts if row.name == "last_seq"]
    assert last == [{"group": "0xb0bab0ba", "enqueued": 5}] * 2


@pytest.mark.parametrize("after", [0, 10, 255, 256, 700, 5000])
def test_the_first_call_that_differs_is_found_far_into_a_log(after: int, tmp_path: Path) -> None:
    job = ranks(2)
    for rank in job:
        rank.healthy(calls=after).calls(1, size=4 + rank.rank).calls(100)
    (fact,) = [row for row in read(tmp_path, job).rows("run").facts if row.name == "nccl_mismatch"]
    assert fact.value["number"] <= after <= fact.value["not_after"]
    assert fact.value["not_after"] - fact.value["number"] <= 512


# Jobs


def test_two_jobs_in_one_file_are_separated(tmp_path: Path) -> None:
    one, two = ranks(2), ranks(2)
    for rank in two:
        rank.pid += 100
    for rank in one:
        rank.begin().connect().done()
    for rank in two:
        rank.info("Using network IB").start("0xdead").done("0xdead")
    lines = [line for rank in (one[0], two[0], one[1], two[1]) for line in rank.lines]
    mixed = lines[::2] + lines[1::2]
    log = read(tmp_path, "\n".join(mixed))
    assert [sorted(p.pid for p in job.processes) for job in log.jobs] == [[4000] * 2, [4100] * 2]
    assert [sorted(job.ranks.values()) for job in log.jobs] == [[0, 1], [0, 1]]
    assert {row.attempt for row in log.rows("run").facts} == {0, 1}


def test_two_jobs_of_an_old_release_are_told_apart_by_their_pids(tmp_path: Path) -> None:
    lines = [
        f"h:{pid}:1 [{rank}] NCCL INFO comm 0x{pid} rank {rank} nranks 2 cudaDev {rank}"
        " nvmlDev 0 - Init COMPLETE"
        for rank in range(2)
        for pid in (10 + rank, 500 + rank)
    ]
    log = read(tmp_path, "\n".join(lines))
    assert [sorted(p.pid for p in job.processes) for job in log.jobs] == [[10, 11], [500, 501]]


def test_ranks_that_come_again_after_a_restart_are_another_attempt(tmp_path: Path) -> None:
    lines: list[str] = []
    for attempt in range(2):
        for rank in ranks(2):
            rank.pid += 50 * attempt
            rank.begin() if not attempt else rank.info("Using network IB").start("0xbeef")
            rank.warn("Cuda failure 2 'out of memory'") if not attempt else rank.done("0xbeef")
            lines += rank.lines
    log = read(tmp_path, "\n".join(lines))
    assert len(log.jobs) == 2
    analysis = judged(log)
    assert (analysis.run.attempt, alarms(analysis)) == (1, [])


def test_ranks_of_sub_communicators_are_those_of_the_job(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.healthy(calls=0).info(
            f"ncclCommSplit comm 0x99{rank.rank}0 rank {rank.rank // 2} nranks 2 cudaDev 0 nvmlDev"
            f" 0 busId 1000 parent 0x55{rank.rank:03x}0 splitCount 1 color {rank.rank % 2} key 0-"
            " Init START",
            f"ncclCommSplit comm 0x99{rank.rank}0 rank {rank.rank // 2} nranks 2 cudaDev 0 nvmlDev"
            f" 0 busId 1000 parent 0x55{rank.rank:03x}0 splitCount 1 color {rank.rank % 2} key 0 -"
            " Init COMPLETE",
        )
    log = read(tmp_path, job)
    groups = {tuple(r.value["ranks"]) for r in log.rows("run").facts if r.name == "group"}
    assert groups == {(0, 1, 2, 3), (0, 2), (1, 3)}


def split(rank: Rank, colors: int, number: int, phase: str = "COMPLETE", told: bool = True) -> Rank:
    """A split by colours; releases before 2.24 do not tell its number."""
    size = rank.world // colors
    return rank.info(
        f"ncclCommSplit comm 0x{9 + number}9{rank.rank}0 rank {rank.rank // colors} nranks {size}"
        f" cudaDev 0 nvmlDev 0 busId 1000 parent 0x55{rank.rank:03x}0"
        f" {f'splitCount {number} ' if told else ''}color {rank.rank % colors} key {rank.rank}"
        f"{'' if phase == 'START' else ' '}- Init {phase}"
    )


def test_children_of_splits_have_the_ids_that_nccl_gives_them(tmp_path: Path) -> None:
    for version in ("2.27.3", "2.25.1"):
        job = ranks(4)
        for rank in job:
            rank.begin(version).connect().done()
            split(rank, 2, 1)
        facts = [r.value for r in read(tmp_path, job).rows("run").facts]
        ids = {value["id"] for value in facts if "id" in value and len(value["ranks"]) == 2}
        known = {f"0x{child_hash(0xB0BAB0BA, 1, color):x}" for color in (0, 1)}
        assert (ids == known) is (version == "2.27.3")
        assert len(ids) == 2


def test_an_id_is_made_as_nccl_makes_it() -> None:
    assert child_hash(0xB0BAB0BA1234567F, 3, -7) == 0x650C6DFD7B051FED


def test_splits_without_a_number_are_told_apart_by_their_order(tmp_path: Path) -> None:
    job = ranks(4)
    for rank in job:
        rank.begin("2.19.3").connect().done()
        split(rank, 2, 1, told=False)
        split(rank, 2, 2, told=False)
    facts = [r.value for r in read(tmp_path, job).rows("run").facts if r.name == "group"]
    assert sorted(tuple(value["ranks"]) for value in facts) == [
        (0, 1, 2, 3), (0, 2), (0, 2), (1, 3), (1, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("quiet", "silent", "ranks_named", "words"),
    [
        ([], [5], [5], "rank 5 did not"),
        ([], [], [], "all 4 ranks began"),
        ([5], [], [], "which ranks the other 1 are"),
    ],
    ids=["one never began", "all began", "one has no log"],
)
def test_of_a_child_only_its_own_members_are_missing(
    quiet: list[int], silent: list[int], ranks_named: list[int], words: str, tmp_path: Path
) -> None:
    """Two colours of four ranks each; the odd ones hang, and even ones are never asked for."""
    job = ranks(8)
    for rank in job:
        rank.begin("2.27.3").done()
        if rank.rank % 2 == 0:
            split(split(rank, 2, 1, "START"), 2, 1)
        elif rank.rank not in silent:
            split(rank, 2, 1, "START")
    found = verdict(tmp_path, [rank for rank in job if rank.rank not in quiet]).findings
    first = next(f for f in found if f.id == "hang.missing_rank")
    assert (list(first.ranks), first.certainty.value) == (ranks_named, "cannot_tell")
    assert words in first.title
    assert not set(first.ranks) & {0, 2, 4, 6}


def test_lines_without_hosts_are_told_apart_by_their_device(tmp_path: Path) -> None:
    log = read(tmp_path, "[0] NCCL INFO Using network IB\n[3] NCCL INFO Using network IB\n")
    (job,) = log.jobs
    assert sorted(job.ranks.values()) == [0, 3]


# Bounds


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_are_read_to_their_cut(name: str) -> None:
    """A megabyte of each: what is not linear in their length would take minutes."""
    begin, middle, end = HOSTILE[name]
    line = begin + middle * (16_000 // len(middle)) + end
    scanner = Scanner()
    scanner.feed([line] * (1_000_000 // len(line)))
    assert len(scanner.processes) < 100_000


def test_a_line_without_end_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "endless.log"
    with open(path, "wb") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(f"\n{LINE}\n".encode())
    process = only(read_logs([path]))
    assert process.first is not None
    assert process.first.line == 2


def test_notices_and_communicators_are_bounded(tmp_path: Path) -> None:
    lines = [f"h:1:2 [0] a{n}.cc:1 NCCL WARN odd thing {n}" for n in range(1000)]
    lines += [f"h:1:2 [0] NCCL INFO comm 0x{n:x} rank 0 nranks 2 cudaDev 0" for n in range(6000)]
    process = only(read(tmp_path, "\n".join(lines)))
    assert (len(process.notices), len(process.all_comms)) == (16, 4096)
    assert process.left_out == 984 + 1904


def test_long_files_are_read_at_both_ends_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    lines = Rank(0).healthy(calls=3000).lines + Rank(0).warn("Duplicate GPU detected : x").lines
    path.write_text("\n".join(lines) + "\n")
    log = read_logs([path], limit=100_000)
    assert "its middle is not read" in log.skipped[0][1]
    (notice,) = only(log).notices.values()
    assert notice.first.line == len(lines)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("nothing of the kind\n")
    (tmp_path / "b.log").write_bytes(b"")
    log = read_logs([tmp_path / "a.log", tmp_path / "b.log", tmp_path / "c.log"])
    assert [path.name for path, _ in log.skipped] == ["a.log", "b.log", "c.log"]


def test_a_log_is_known_though_a_training_spoke_first(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("step 1 loss 2.0\n" * 20_000 + f"{LINE}\n" * 3_000)
    assert NcclLogImporter().recognizes(path, path.read_bytes()[: 1 << 16])
    assert not NcclLogImporter().recognizes(path, b"step 1 loss 2.0\n")


def test_the_table_has_versions_and_places() -> None:
    table = meanings()
    assert len(table) > 100
    assert {one.role for one in table} == {"primary", "secondary", "note", "benign"}
    assert all(one.source for one in table)
