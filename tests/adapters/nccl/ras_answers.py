"""Answers of NCCL's RAS made to order, as text of several releases and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_RESULTS = {1: "Unhandled CUDA error", 2: "System error", 6: "Remote process error"}


@dataclass
class Comm:
    """A communicator: what each rank launched and how it stands."""

    counts: Mapping[str, Sequence[int]]
    hash: str = "cf264af53edbe986"
    gone: Sequence[int] = ()
    """Ranks that gave no answer."""
    dead: bool = False
    init: Sequence[int] = ()
    """Ranks that are not through their start-up."""
    errors: Mapping[int, int] = field(default_factory=dict)
    places: Sequence[int] | None = None
    """Which process of the job each rank is, where it is another one."""

    @property
    def size(self) -> int:
        return len(next(iter(self.counts.values())))

    def process(self, rank: int) -> tuple[str, int, int]:
        """Host, pid and GPU of a rank; eight of them share a host."""
        place = self.places[rank] if self.places else rank
        return f"10.0.0.{place // 8 + 1}", 5000 + place, place % 8

    def there(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.gone]


def _where(comm: Comm, rank: int) -> str:
    host, pid, gpu = comm.process(rank)
    return f"GPU {gpu} managed by process {pid} on node {host}"


def _groups(values: Mapping[int, int | str]) -> list[tuple[int | str, list[int]]]:
    counted = Counter(values.values())
    ordered = sorted(counted, key=lambda value: -counted[value])
    return [(value, [r for r, one in values.items() if one == value]) for value in ordered]


def _listed(ranks: Sequence[int], size: int, verbose: bool) -> bool:
    few = len(ranks) < size / 2 if verbose else len(ranks) <= min(10, size / 4)
    return len(ranks) == 1 or few


def _differing(
    comm: Comm, values: Mapping[int, int | str], verb: str, verbose: bool
) -> list[str]:  # fmt: skip
    lines = []
    for value, ranks in _groups(values):
        said = verb.format(value) if value else "not launched any operations"
        if len(ranks) > 1:
            lines.append(f"  {len(ranks)} ranks have {said}")
            if _listed(ranks, comm.size, verbose):
                lines += [f"  Rank {rank} -- {_where(comm, rank)}" for rank in ranks]
        else:
            lines.append(f"  Rank {ranks[0]} has {said} -- {_where(comm, ranks[0])}")
    return lines


def text(
    *comms: Comm, version: str = "2.29.2", verbose: bool = True, processes: int | None = None
) -> str:
    """A report of status."""
    old = version < "2.26"
    total = processes or max((comm.size for comm in comms), default=8)
    nodes = -(-total // 8)
    lines = [
        f"NCCL version {version} compiled with CUDA 12.8",
        "CUDA runtime version 12080, driver version 12080", "", "Job summary", "===========", "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"{nodes:7d}  {min(8, total):9d}  {1:11d}  {total:9d}  {total:7d}", "",
        "Communicators... (0.00s)", "=============", "",
    ]  # fmt: skip
    errors, warnings = [], []
    gone = {comm.process(rank): comm.dead for comm in comms for rank in comm.gone}
    for dead, kind in ((False, "INCOMPLETE"), (True, "DEAD")):
        there = [process for process, is_dead in gone.items() if is_dead is dead]
        if there:
            several = "es are" if len(there) > 1 else " is"
            told_of = (
                f"  {len(there)} job process{several} considered dead (unreachable via the RAS"
                " network)"
                if dead
                else f"  Missing communicator data from {len(there)} job process"
                + ("es" if len(there) > 1 else "")
            )
            listed = [f"  Process {p} on node {host} managing GPU {gpu}" for host, p, gpu in there]
            errors += [kind, told_of, *listed, ""]
    rows = []
    for number, comm in enumerate(comms):
        told = []
        name = f"#{number}-0 ({comm.hash})"
        if comm.gone:
            told.append("INCOMPLETE")
            plural = "s" if len(comm.gone) > 1 else ""
            errors += [
                f"{name} INCOMPLETE",
                f"  Missing communicator data from {len(comm.gone)} rank{plural}",
            ]
            if old:
                missing = ", ".join(map(str, comm.gone))
                errors.append(f"  The missing rank{plural}: {missing}")
            else:
                errors += [f"  Rank {rank} -- {_where(comm, rank)}" for rank in comm.gone]
            errors.append("")
        if comm.errors:
            told.append("ERROR")
            errors += [f"{name} ERROR", f"  Asynchronous errors on {len(comm.errors)} ranks"]
            for result, ranks in _groups(dict(comm.errors)):
                word = _RESULTS[int(result)]
                if len(ranks) > 1:
                    errors.append(f"  {len(ranks)} ranks reported {word}")
                    errors += [f"  Rank {rank} -- {_where(comm, rank)}" for rank in ranks]
                else:
                    errors.append(f"  Rank {ranks[0]} reported {word} -- {_where(comm, ranks[0])}")
            errors.append("")
        status = {r: "INIT" if r in comm.init else "RUNNING" for r in comm.there()}
        differing = {
            op: {rank: counts[rank] for rank in comm.there()}
            for op, counts in comm.counts.items()
            if len({counts[rank] for rank in comm.there()}) > 1
        }
        if differing or len(set(status.values())) > 1:
            told.append("MISMATCH")
            warnings.append(f"{name} MISMATCH")
            if len(set(status.values())) > 1:
                warnings.append("  Communicator ranks have different status")
                warnings += _differing(comm, dict(status), "status {}", verbose)
            for op, values in differing.items():
                kind = "collective" if old else op
                warnings.append(f"  Communicator ranks have different {kind} operation counts")
                verb = "launched up to operation {}"
                warnings += [*_differing(comm, dict(values), verb, verbose), ""]
        word = "RUNNING" if "RUNNING" in status.values() else "INIT"
        rows.append(
            f"{number:5d}  {1:8d}  {nodes:8d}  {min(8, comm.size):8d}  {comm.size:8d}"
            f"  {len(comm.there()):8d}  {word:>8s}  {','.join(told) or 'OK':>6s}"
        )
    if rows:
        lines += ["Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
                  "    #  in group  per comm  per node  per comm  in group", *rows]  # fmt: skip
    else:
        lines.append("No communicator data collected!")
    lines += ["", "Errors", "======", "", *errors, "Warnings", "========", "", *warnings]
    return "\n".join(lines) + "\n"


def as_json(*comms: Comm, time: str = "2026-05-01 10:00:00") -> str:
    """A dump of all that RAS knows."""
    told = []
    for comm in comms:
        ranks, missing = [], []
        for rank in range(comm.size):
            host, pid, gpu = comm.process(rank)
            about = {"rank": rank, "host": host, "pid": pid, "cuda_dev": gpu, "nvml_dev": gpu}
            if rank in comm.gone:
                status = {"unresponsive": True, "considered_dead": comm.dead}
                missing.append({**about, "status": status})
                continue
            state = {
                "init_state": 7 if rank in comm.init else 0,
                "async_error": comm.errors.get(rank, 0),
                "finalize_called": False, "destroy_flag": False, "abort_flag": False,
            }  # fmt: skip
            counts = {op: values[rank] for op, values in comm.counts.items()}
            ranks.append({**about, "status": state, "collective_counts": {"Reduce": 0, **counts}})
        told.append(
            {
                "hash": f"0x{comm.hash}", "secondary_hash": "0x1:0x2", "size": comm.size,
                "ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks,
                "missing_ranks": missing,
            }
        )  # fmt: skip
    value = {
        "nccl_version": "2.29.2", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": time, "communicators_count": len(told), "communicators": told,
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }  # fmt: skip
    return json.dumps(value, indent=2) + "\n"
