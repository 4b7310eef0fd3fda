"""What errors of c10d quote of NCCL: the cause where it is one, and never a rank for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.text_logs.logs import (
    alerts,
    c10,
    elastic,
    progress,
    traceback,
    verdict,
    watchdog,
)
from tracekit.analysis import Analysis

NCCL = (
    "torch.distributed.DistBackendError: NCCL error in:"
    " ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, {}, NCCL version 2.21.5"
)
PEER = "trainer-7.internal.example"
CLOSED = f"socketProgress: Connection closed by remote peer {PEER}<40514>"
OOM = "Cuda failure 2 'out of memory'"
ROUTE = (
    "socketPollConnect: connect to 10.3.0.9<41877> returned No route to host, exceeded error"
    " retry count after 35 attempts"
)
RETRY = (
    "NET/IB: Got completion from peer 10.3.0.9<41877> with status=12 opcode=0 len=0 vendor err 129"
    " (Send) hca mlx5_2"
)


def raised(rank: int, last: str, what: str = "unhandled system error") -> str:
    """The traceback of a rank whose error quotes NCCL's last one."""
    return traceback(rank, NCCL.format(what)) + f"[rank{rank}]: Last error:\n[rank{rank}]: {last}\n"


def asynchronous(rank: int, last: str) -> str:
    """The watchdog's words; only their first line has a tag."""
    return (
        c10(
            rank,
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Collective WorkNCCL(SeqNum=88,"
            " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised the following"
            " async exception: NCCL error: remote process exited or there was a network error,"
            " NCCL version 2.21.5",
        )
        + "ncclRemoteError: A call failed possibly due to a network error or a remote process"
        f" exiting prematurely.\nLast error:\n{last}\n"
    )


def gravest(result: Analysis) -> tuple[str, tuple[int, ...], str | None]:
    first = result.findings[0]
    return first.id, first.ranks, first.evidence.get("class")


@pytest.mark.parametrize(
    ("last", "id_", "cause"),
    [
        (ROUTE, "comm.error", "net_firewall"),
        (RETRY, "comm.error", "net_retry"),
        ("Call to ibv_modify_qp failed with error Connection timed out", "comm.error", "net_gid"),
        ("socketStartConnect: Connect to 172.17.0.4<3301> failed : Connection refused",
         "comm.error", "net_interface"),
        ("Error: failed to extend /dev/shm/nccl-q3Xb91 to 9637892 bytes", "host.limit", "host_shm"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "host.limit",
         "host_memlock"),
        ("Mismatched NCCL version detected : rank 0 version 22005 rank 1 version 21903",
         "config.versions", "versions"),
        (OOM, "crash.oom", "gpu_oom"),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", "crash.error", "gpu_ecc"),
    ],
)  # fmt: skip
def test_a_quoted_cause_is_judged_as_in_nccls_own_log(
    tmp_path: Path, last: str, id_: str, cause: str
) -> None:
    result = verdict(tmp_path, progress(range(4)) + raised(1, last))
    assert gravest(result) == (id_, (1,), cause)
    assert [alert[0] for alert in alerts(result)] == [id_]
    assert last[:40] in result.findings[0].title


def test_two_ranks_on_one_gpu_are_named_by_either_of_them(tmp_path: Path) -> None:
    text = raised(1, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3b000",
                  "invalid usage")  # fmt: skip
    result = verdict(tmp_path, progress(range(4)) + text)
    assert alerts(result) == [("config.device", (0, 1), "proven")]
    assert "set_device" in " ".join(result.findings[0].advice)


def test_who_ran_out_of_memory_explains_whoever_lost_it(tmp_path: Path) -> None:
    """The launcher calls rank 0 the root, which only complained first."""
    text = progress(range(4)) + "".join(raised(rank, CLOSED) for rank in (0, 1, 2))
    text += raised(3, OOM, "unhandled cuda error") + elastic(dict.fromkeys(range(4), 1), first=0)
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.oom", (3,), "likely")]
    assert result.symptom == "oom"


def test_the_host_of_a_worker_that_was_lost_is_told_and_nobody_who_lost_it(tmp_path: Path) -> None:
    text = progress(range(4)) + "".join(asynchronous(rank, CLOSED) for rank in (0, 1, 2))
    result = verdict(tmp_path, text)
    assert alerts(result) == [("crash.vanished", (3,), "likely")]
    assert PEER in result.findings[0].title
    assert result.findings[0].evidence["peers"] == [PEER]


def test_a_killed_worker_stays_the_cause_whatever_others_quote(tmp_path: Path) -> None:
    text = progress(range(4)) + asynchronous(0, RETRY) + raised(1, CLOSED)
    text += elastic({3: -9, 0: -6, 1: 1, 2: -15}, first=0)
    result = verdict(tmp_path, text)
    assert alerts(result)[0][:2] == ("crash.killed", (3,))
    assert not any(id_.startswith("crash") and ranks != (3,) for id_, ranks, _ in alerts(result))


def test_a_log_alone_with_a_lost_connection_names_the_host_and_no_rank(tmp_path: Path) -> None:
    files = {"rank0.log": "world_size: 4\nstep 9\n" + asynchronous(0, CLOSED)}
    result = verdict(tmp_path, files)
    crashes = [one for one in alerts(result) if one[0].startswith("crash")]
    assert crashes == [("crash.vanished", (), "cannot_tell")]
    assert PEER in result.findings[0].title


def test_ranks_that_waited_are_not_accused_beside_a_quoted_cause(tmp_path: Path) -> None:
    text = progress(range(4)) + raised(3, ROUTE) + "".join(watchdog(rank, 77) for rank in (0, 1, 2))
    result = verdict(tmp_path, text)
    assert alerts(result)[0][:2] == ("comm.error", (3,))
    assert all(ranks in ((3,), ()) for _, ranks, _ in alerts(result))


@pytest.mark.parametrize(
    "last",
    ["Call to bind failed: Address already in use", "something that nobody has heard of",
     "dlsym failed on cuMemCreate - undefined symbol"],
)  # fmt: skip
def test_a_quotation_without_a_meaning_changes_nothing(tmp_path: Path, last: str) -> None:
    plain = verdict(tmp_path, progress(range(4)) + traceback(3, NCCL.format("internal error")))
    told = verdict(tmp_path, progress(range(4)) + raised(3, last, "internal error"))
    assert alerts(told) == alerts(plain)
    assert alerts(told)[0][:2] == ("crash.error", (3,))
