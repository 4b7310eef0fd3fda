"""Debug logs made to order, in the words of NCCL's releases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tracekit.adapters.nccl_log import NcclLog, read_logs
from tracekit.analysis import Analysis, analyze
from tracekit.dataset.engine import DuckDB
from tracekit.dataset.schema import TABLES
from tracekit.findings import Finding, Severity


class Rank:
    """The lines of one process, one method a message."""

    def __init__(self, rank: int, world: int = 2, per_host: int = 1, prefix: str = "") -> None:
        self.rank, self.world = rank, world
        self.node, self.local = divmod(rank, per_host)
        self.host = f"node{self.node}"
        self.pid = 4000 + self.local
        self.address = f"10.0.0.{self.node + 1}"
        self.prefix = prefix
        self.lines: list[str] = []

    @property
    def head(self) -> str:
        """What NCCL puts in front of its lines."""
        return f"{self.prefix}{self.host}:{self.pid}:{self.pid + 7} [{self.local}]"

    def info(self, *messages: str) -> Rank:
        self.lines += [f"{self.head} NCCL INFO {message}" for message in messages]
        return self

    def warn(self, message: str, place: str = "transport/net_ib.cc:1295") -> Rank:
        self.lines += ["", f"{self.head} {place} NCCL WARN {message}"]
        return self

    def begin(self, version: str = "2.21.5", network: str = "IB", cards: int = 2) -> Rank:
        """Bootstrap and network, as far as the beginning of the first communicator."""
        self.info(
            f"Bootstrap : Using eth0:{self.address}<0>",
            f"NCCL version {version}+cuda12.4",
            "NET/Plugin: No plugin found (libnccl-net.so)",
        )
        if network == "IB":
            listed = " ".join(f"[{card}]mlx5_{card}:1/IB" for card in range(cards))
            self.info(f"NET/IB : Using {listed} [RO]; OOB eth0:{self.address}<0>")
        else:
            self.info("NET/IB : No device found.", f"NET/Socket : Using [0]eth0:{self.address}<0>")
        return self.info(f"Using network {network}").start()

    def start(self, id_: str = "0xb0bab0ba") -> Rank:
        return self.info(f"ncclCommInitRank {self.comm} commId {id_} - Init START")

    @property
    def comm(self) -> str:
        return (
            f"comm 0x55{self.rank:03x}0 rank {self.rank} nranks {self.world} cudaDev {self.local}"
            f" nvmlDev {self.local} busId {self.local + 1}000"
        )

    def cards(self, *megabits: int) -> Rank:
        """The link of each card (since 2.27, SUBSYS=NET)."""
        return self.info(
            *(
                f"NET/IB: [{place}] mlx5_{place}:uverbs{place}:1/IB provider=Mlx5 speed={speed}"
                f" context=0x7f0{place} pciPath=/sys/devices/pci0000:{place} ar=0"
                for place, speed in enumerate(megabits)
            )
        )

    def connect(self, via: str = "NET/IB/0/GDRDMA", channels: int = 2) -> Rank:
        """Channels to and from the neighbours."""
        other = (self.rank + 1) % self.world
        for channel in range(channels):
            self.info(
                f"Channel {channel:02d}/0 : {self.rank}[{self.local}] -> {other}[0]"
                f" [send] via {via}"
            )
        return self.info("Connected all rings", "Connected all trees")

    def done(self, id_: str = "0xb0bab0ba") -> Rank:
        return self.info(f"ncclCommInitRank {self.comm} commId {id_} - Init COMPLETE")

    def calls(self, count: int, op: str = "AllReduce", size: int = 1024, dtype: int = 7) -> Rank:
        done = sum(" opCount " in line for line in self.lines)
        return self.info(
            *(
                f"{op}: opCount {number:x} sendbuff 0x7f00 recvbuff 0x7f00 count {size} datatype"
                f" {dtype} op 0 root 0 comm 0x55{self.rank:03x}0 [nranks={self.world}] stream 0x9"
                for number in range(done, done + count)
            )
        )

    def healthy(self, version: str = "2.21.5", calls: int = 40) -> Rank:
        self.begin(version).connect().done()
        return self.calls(calls) if calls else self

    def end(self) -> Rank:
        return self.info(f"{self.comm} - Destroy COMPLETE")


def ranks(world: int = 2, per_host: int = 1, **options: str) -> list[Rank]:
    return [Rank(rank, world, per_host, **options) for rank in range(world)]


def write(folder: Path, processes: Iterable[Rank] | str | bytes) -> list[Path]:
    """One file a process, or a file of a text."""
    if isinstance(processes, (str, bytes)):
        path = folder / "job.log"
        path.write_bytes(processes.encode() if isinstance(processes, str) else processes)
        return [path]
    paths = []
    for process in processes:
        path = folder / f"{process.host}.{process.pid}.log"
        path.write_text("\n".join(process.lines) + "\n")
        paths.append(path)
    return paths


def read(folder: Path, processes: Iterable[Rank] | str | bytes) -> NcclLog:
    return read_logs(write(folder, processes))


def judged(log: NcclLog) -> Analysis:
    """The verdict over what was read, without a run directory in between."""
    with DuckDB() as engine:
        for name, schema in TABLES.items():
            engine.register(name, [log.rows("run").tables().get(name, schema.empty_table())])
        return analyze(engine)


def verdict(folder: Path, processes: Iterable[Rank] | str | bytes) -> Analysis:
    return judged(read(folder, processes))


def alarms(analysis: Analysis) -> list[Finding]:
    """Findings above information."""
    return [f for f in analysis.findings if f.severity is not Severity.INFO]


def gravest(analysis: Analysis) -> Finding:
    return analysis.findings[0]
