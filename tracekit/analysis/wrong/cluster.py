"""Who takes part: whether what processes were told of their cluster is whole, equal and true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.analysis.record import Record, number, text_of
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say

__all__ = ["Seat", "cluster_findings", "seats_of"]

_TRAINING = ("chief", "master", "worker")
_JOBS = (*_TRAINING, "ps")
"""Jobs that all have the same list of tasks; an evaluator stands beside them."""
_LOOPBACK = ("localhost:", "127.", "[::1]", "::1", "0.0.0.0:")

Address = tuple[str, int]
"""Job and index of a task."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What the process of a rank was told: the addresses of all tasks, and which it is."""

    rank: int
    addresses: Mapping[Address, str]
    task: Address | None

    @property
    def workers(self) -> int:
        """How many processes train together."""
        return sum(job in _TRAINING for job, _ in self.addresses)

    @property
    def trains(self) -> bool:
        """Whether it is one of them, and nobody serves them parameters."""
        served = any(job == "ps" for job, _ in self.addresses)
        return self.task is not None and self.task[0] in _TRAINING and not served


def cluster_findings(record: Record) -> Iterator[Finding]:
    """What is wrong with the cluster that processes were told."""
    seats = seats_of(record)
    yield from _unusable(record, seats)
    yield from _told_twice(record, seats)
    yield from _same_process_twice(record, seats)
    yield from _unreachable(record, seats)
    yield from _different(record, seats)


def seats_of(record: Record) -> dict[int, Seat]:
    """What each rank was told, where it has the right form."""
    found = {}
    for rank in record.ranks:
        told = record.facts.of(rank).last("tf_config")
        if told.get("valid") is not False and isinstance(told.get("cluster"), dict):
            found[rank] = Seat(rank, _addresses(told["cluster"]), _task(told.get("task")))
    return found


def _addresses(cluster: Mapping[str, Any]) -> dict[Address, str]:
    found = {}
    for job, told in cluster.items():
        named = dict(enumerate(told)) if isinstance(told, list) else told
        for index, address in named.items() if isinstance(named, dict) else ():
            if str(index).isdecimal():
                found[str(job), int(index)] = str(address)
    return found


def _task(told: Any) -> Address | None:
    if not isinstance(told, dict):
        return None
    index = str(told.get("index"))
    return (str(told.get("type")), int(index)) if index.isdecimal() else None


def _unusable(record: Record, seats: Mapping[int, Seat]) -> Iterator[Finding]:
    """A text that is no cluster, or a task that the cluster does not have."""
    errors: dict[str, list[int]] = {}
    for rank in record.ranks:
        told = record.facts.of(rank).last("tf_config")
        if told.get("valid") is False:
            error = text_of(told.get("error")) or "it has not the form of a cluster and a task"
            errors.setdefault(error, []).append(rank)
    for rank, seat in seats.items():
        if seat.task is not None and seat.task[0] in _JOBS and seat.task not in seat.addresses:
            job, index = seat.task
            there = sum(name == job for name, _ in seat.addresses)
            error = say("cluster.index", job=job, index=index, count=there)
            errors.setdefault(error, []).append(rank)
    for error, ranks in errors.items():
        failed = [rank for rank in ranks if (end := record.ends.get(rank)) and end.is_bad]
        alone = [rank for rank in ranks if _workers(record, rank) == 1]
        effect = failed or (alone if _others_train(record, alone) else [])
        yield Finding(
            "config.tf_config",
            Severity.CRITICAL if effect else Severity.WARNING,
            Certainty.PROVEN,
            say("config.tf_config.invalid", ranks=ranks_words(ranks), error=error),
            ranks=tuple(ranks),
            evidence={"error": str(error), "ended_badly": failed, "train_alone": alone},
            advice=(say("advice.tf_config"),),
        )


def _workers(record: Record, rank: int) -> int | None:
    return number(record.facts.of(rank).last("strategy").get("workers"))


def _others_train(record: Record, ranks: Sequence[int]) -> bool:
    """Whether there are ranks that could have trained with these."""
    return bool(ranks) and max(len(record.ranks), record.run.world_size) > 1


def _told_twice(record: Record, seats: Mapping[int, Seat]) -> Iterator[Finding]:
    """Several ranks that were told to be the same task."""
    tasks: dict[Address, list[int]] = {}
    for rank, seat in seats.items():
        if seat.task is not None:
            tasks.setdefault(seat.task, []).append(rank)
    for (job, index), ranks in tasks.items():
        if len(ranks) > 1:
            absent = _absent(seats[ranks[0]], tasks)
            yield Finding(
                "config.tf_config",
                Severity.CRITICAL if absent else Severity.WARNING,
                Certainty.PROVEN,
                say(
                    "config.tf_config.duplicate", ranks=ranks_words(ranks), job=job, index=index,
                    absent=_absent_words(absent),
                ),
                ranks=tuple(ranks),
                evidence={"task": [job, index], "absent": [list(one) for one in absent]},
                advice=(say("advice.tf_config.index"),),
            )  # fmt: skip


def _same_process_twice(record: Record, seats: Mapping[int, Seat]) -> Iterator[Finding]:
    """One task by which several processes came; a restart looks the same while nobody is absent."""
    tasks = [seat.task for seat in seats.values() if seat.task is not None]
    for rank, processes in record.coverage.duplicate_ranks.items():
        seat = seats.get(rank)
        if seat is None or seat.task is None:
            continue
        absent = _absent(seat, tasks)
        job, index = seat.task
        yield Finding(
            "config.tf_config",
            Severity.WARNING if absent else Severity.INFO,
            Certainty.LIKELY if absent else Certainty.CANNOT_TELL,
            say(
                "config.tf_config.twice" if absent else "config.tf_config.restarted",
                count=len(processes), job=job, index=index, absent=_absent_words(absent),
            ),
            ranks=(rank,),
            evidence={
                "task": [job, index],
                "processes": list(processes),
                "absent": [list(one) for one in absent],
            },
            advice=(say("advice.tf_config.index"),),
        )  # fmt: skip


def _absent(seat: Seat, tasks: Any) -> list[Address]:
    """Tasks of the training that nobody came as."""
    return [one for one in sorted(seat.addresses) if one[0] in _TRAINING and one not in tasks]


def _absent_words(absent: Sequence[Address]) -> Words:
    if not absent:
        return say("cluster.none_absent")
    return say("cluster.absent", listed=", ".join(f"{job} {index}" for job, index in absent))


def _unreachable(record: Record, seats: Mapping[int, Seat]) -> Iterator[Finding]:
    """Addresses of this machine for tasks that run on another one."""
    place = {seat.task: rank for rank, seat in seats.items() if seat.task is not None}
    wrong: dict[int, dict[str, str]] = {}
    for rank, seat in seats.items():
        for task, address in seat.addresses.items():
            other = place.get(task)
            apart = other is not None and record.apart(rank, other)
            if apart and address.startswith(_LOOPBACK):
                wrong.setdefault(rank, {})[f"{task[0]} {task[1]}"] = address
    if not wrong:
        return
    together = _trained_together(record)
    hosts = sorted({record.facts.of(rank).host for rank in seats})
    first = next(iter(wrong.values()))
    yield Finding(
        "config.tf_config",
        Severity.INFO if together else Severity.WARNING if record.run.steps else Severity.CRITICAL,
        Certainty.CANNOT_TELL if together else Certainty.LIKELY,
        say(
            "config.tf_config.loopback", address=next(iter(first.values())),
            task=next(iter(first)), hosts=", ".join(hosts), ranks=ranks_words(sorted(wrong)),
        ),
        ranks=tuple(sorted(wrong)),
        evidence={
            "hosts": hosts,
            "addresses": {str(rank): told for rank, told in wrong.items()},
            "steps": record.run.steps,
        },
        advice=(say("advice.tf_config.address"),),
    )  # fmt: skip


def _trained_together(record: Record) -> bool:
    """Whether steps were taken by as many workers as left a record."""
    counts = [_workers(record, rank) or 0 for rank in record.ranks]
    return bool(record.run.steps) and len(counts) > 1 and min(counts) >= len(counts)


def _different(record: Record, seats: Mapping[int, Seat]) -> Iterator[Finding]:
    """Ranks whose list of tasks is not that of the others."""
    if len(seats) < 2:
        return
    lists = {rank: _shared(seat, seats) for rank, seat in seats.items()}
    votes = Counter(lists.values())
    if len(votes) < 2:
        return
    (usual, most), (_, next_most) = votes.most_common(2)
    decided = most > next_most
    odd = tuple(rank for rank, told in lists.items() if told != usual or not decided)
    sizes = {len(told) for told in lists.values()}
    together = _trained_together(record)
    key = "different" if decided else "different.undecided"
    yield Finding(
        "config.tf_config",
        Severity.INFO if together else Severity.WARNING,
        Certainty.PROVEN if decided else Certainty.CANNOT_TELL,
        say(
            f"config.tf_config.{key}", ranks=ranks_words(odd),
            how=say("cluster.sizes" if len(sizes) > 1 else "cluster.addresses"),
        ),
        ranks=odd,
        evidence={
            "clusters": {
                str(rank): {f"{job} {index}": address for (job, index), address in told}
                for rank, told in list(lists.items())[:16]
            }
        },
        advice=(say("advice.tf_config.same"),),
    )  # fmt: skip


def _shared(seat: Seat, seats: Mapping[int, Seat]) -> tuple[tuple[Address, str], ...]:
    """The list as one may compare it: what a process calls itself is its own affair."""
    told = {task: address for task, address in seat.addresses.items() if task[0] in _JOBS}
    if seat.task in told and told[seat.task].startswith(_LOOPBACK):
        others = Counter(
            one.addresses[seat.task] for one in seats.values()
            if one.rank != seat.rank and seat.task in one.addresses
        )  # fmt: skip
        told[seat.task] = others.most_common(1)[0][0] if others else told[seat.task]
    return tuple(sorted(told.items()))
