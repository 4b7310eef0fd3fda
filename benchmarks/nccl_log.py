"""How fast NCCL's debug logs are read, in how much memory, and whether odd lines slow it.

A log of 64 ranks, 200 MB or with ``--long`` 2 GB: MB/s of one core and what the process grows by
over the file. Then for each hostile line how long twice of it takes beside once: 2 is linear.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row, main
from tracekit.adapters.nccl_log import read_logs
from tracekit.adapters.nccl_log._scanner import Scanner

RANKS = 64
HOSTILE: dict[str, tuple[bytes, bytes, bytes]] = {
    "hosts without end": (b"", b"a.", b" NCCL INFO x"),
    "digits and colons": (b"", b"1:", b" [0] NCCL WARN x"),
    "heads one after the other": (b"", b"h:1:2 [0] ", b" NCCL WARN x"),
    "levels one after the other": (b"", b"h:1:2 [0] NCCL INFO ", b""),
    "levels without heads": (b"", b" NCCL INFO ", b""),
    "blanks": (b"h:1:2 [0] NCCL INFO ", b" ", b""),
    "brackets": (b"h:1:2 [0] NCCL INFO ", b"[[", b""),
    "cards": (b"h:1:2 [0] NCCL INFO NET/IB : Using ", b"[0]m:1/", b""),
    "speeds": (b"h:1:2 [0] NCCL INFO NET/IB: [0] m:u:1/IB", b" [0] m:u:1/IB", b" speed="),
    "a communicator": (b"h:1:2 [0] NCCL INFO comm 0x1 rank ", b"rank 1 nranks ", b""),
    "a result": (b"h:1:2 [0] NCCL INFO ", b"a/", b" -> 1"),
    "escapes": (b"", b"\x1b[", b" NCCL INFO x"),
    "times": (b"", b"2024-01-01 00:00:0", b" NCCL INFO x"),
    "peers": (b"h:1:2 [0] net.cc:1 NCCL WARN Connection reset by peer ", b"a:b<", b""),
    "versions": (b"NCCL version 1.1.1", b"+cuda", b""),
    "a warning's place": (b"h:1:2 [0] ", b"(a:1) ", b" NCCL WARN x"),
}
"""What may be in a line, and what is repeated in it."""


def job_log(path: Path, megabytes: int, ranks: int) -> int:
    """A log of one job as ranks write it: start-up, then collectives and a training's own lines."""
    written = 0
    with open(path, "wb") as file:
        for rank in range(ranks):
            head = f"node{rank // 8}:{4000 + rank % 8}:{4100 + rank} [{rank % 8}] NCCL INFO"
            comm = f"comm 0x55{rank:05x}0 rank {rank} nranks {ranks} cudaDev {rank % 8}"
            lines = [
                f"{head} Bootstrap : Using eth0:10.0.{rank // 8}.1<0>",
                f"{head} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
                f"{head} Using network IB",
                f"{head} {comm} nvmlDev 0 busId 1000 commId 0xabcdef - Init START",
                *(
                    f"{head} Channel {channel:02d}/0 : {rank}[{rank % 8}] -> {(rank + 1) % ranks}"
                    "[0] [send] via NET/IB/0/GDRDMA"
                    for channel in range(16)
                ),
                f"{head} {comm} nvmlDev 0 busId 1000 commId 0xabcdef - Init COMPLETE",
            ]
            written += file.write(("\n".join(lines) + "\n").encode())
        step = 0
        while written < megabytes * 1_000_000:
            block = []
            for rank in range(ranks):
                head = f"node{rank // 8}:{4000 + rank % 8}:{4100 + rank} [{rank % 8}] NCCL INFO"
                block += [
                    f"{head} AllReduce: opCount {step:x} sendbuff 0x7f2a4c000000 recvbuff"
                    f" 0x7f2a4c000000 count {1024 << part} datatype 7 op 0 root 0 comm"
                    f" 0x55{rank:05x}0 [nranks={ranks}] stream 0x5566778899"
                    for part in range(4)
                ]
                block.append(f"[rank{rank}] step {step} loss 2.3456 lr 1.0e-4 tokens/s 10234.5")
            written += file.write(("\n".join(block) + "\n").encode())
            step += 1
    return written


def seconds(lines: list[bytes]) -> float:
    """Processor time for lines, the best of three."""
    best = float("inf")
    for _ in range(3):
        scanner = Scanner()
        begin = time.process_time()
        scanner.feed(lines)
        best = min(best, time.process_time() - begin)
    return best


def logs(long: bool) -> Iterator[Row]:
    """A job's log, then odd lines."""
    with tempfile.TemporaryDirectory() as folder:
        small, path = Path(folder, "small.log"), Path(folder, "job.log")
        job_log(small, 2, RANKS)
        read_logs([small])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = job_log(path, 2000 if long else 200, RANKS)
        begin = time.process_time()
        log = read_logs([path])
        took = time.process_time() - begin
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        speed = size / 1e6 / took
        yield Row(
            f"NCCL's log of {RANKS} ranks, {size / 1e6:.0f} MB, {log.messages:,} messages",
            f"{speed:.0f} MB/s a core, {before / 1024:.0f} MiB + {grown:.0f} MiB",
            ">= 40 MB/s",
            speed >= 40,
        )
    for name, (head, middle, end) in HOSTILE.items():
        lines = [head + middle * (size // len(middle)) + end for size in (8000, 16000)]
        once, twice = (seconds([line] * 50) for line in lines)
        rate = 50 * len(lines[1]) / twice / 1e6
        measured = f"twice as long takes {twice / once:.1f} times, {rate:.0f} MB/s"
        yield Row(f"a hostile line: {name}", measured)


if __name__ == "__main__":
    main(logs, __doc__)
